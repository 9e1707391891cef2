// The kernels of peers of one dtype, for simt/machine.h.
#include "simt/cuda_words.h"
//
#include "cuda/peer/instances.cu"
