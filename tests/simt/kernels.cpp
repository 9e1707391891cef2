// The forward kernels of one dtype and source, for simt/machine.h.
#include "simt/cuda_words.h"
//
#include "simt/spec.h"
//
#include "cuda/norm/instances.cu"
