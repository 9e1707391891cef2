// The norm_heads kernels for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_AVX2
#include "cpu/norm_heads-inl.h"

namespace fastnorm::cpu {

constinit const NormHeadsKernels kNormHeadsAvx2 = kNormHeadsOfUnit;

}  // namespace fastnorm::cpu
