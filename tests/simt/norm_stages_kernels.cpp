// The kernels of calls with stages of one dtype, for simt/machine.h: those of sm_90.
#include "simt/cuda_words.h"
//
#include "cuda/norm_stages/instances.cu"
