// The norm_heads kernels for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_NEON
#include "cpu/norm_heads-inl.h"

namespace fastnorm::cpu {

constinit const NormHeadsKernels kNormHeadsNeon = kNormHeadsOfUnit;

}  // namespace fastnorm::cpu
