// The forward kernels for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_AVX2
#include "cpu/norm-inl.h"

namespace fastnorm::cpu {

constinit const NormKernels kNormAvx2 = all_kernels();

}  // namespace fastnorm::cpu
