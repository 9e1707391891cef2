// The kernels of norm_heads_backward of one dtype, for simt/machine.h: those of sm_90.
#include "simt/cuda_words.h"
//
#include "cuda/norm_heads_backward/instances.cu"
