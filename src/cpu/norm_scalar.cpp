// The forward kernels for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_SCALAR
#include "cpu/norm-inl.h"

namespace fastnorm::cpu {

constinit const NormKernels kNormScalar = all_kernels();

}  // namespace fastnorm::cpu
