// The forward kernels for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_NEON
#include "cpu/norm-inl.h"

namespace fastnorm::cpu {

constinit const NormKernels kNormNeon = all_kernels();

}  // namespace fastnorm::cpu
