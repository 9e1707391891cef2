// The norm_heads kernels for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_AVX512
#include "cpu/norm_heads-inl.h"

namespace fastnorm::cpu {

constinit const NormHeadsKernels kNormHeadsAvx512 = kNormHeadsOfUnit;

}  // namespace fastnorm::cpu
