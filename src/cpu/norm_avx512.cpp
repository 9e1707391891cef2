// The forward kernels for AVX-512. Compiled twice: without AVX512_BF16, and with it for the bf16
// kernels. meson.build has the flags.
#define FASTNORM_UNIT_AVX512
#include "cpu/norm-inl.h"

namespace fastnorm::cpu {

#ifdef __AVX512BF16__
constinit const NormKernels kNormAvx512Bf16 = kernels_of<Dtype::kBF16>();
#else
constinit const NormKernels kNormAvx512 = all_kernels();
#endif

}  // namespace fastnorm::cpu
