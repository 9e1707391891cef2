// The forward kernels for AVX-512, compiled twice: with and without AVX512_BF16; meson.build has the flags.
#define FASTNORM_UNIT_AVX512
#include "cpu/norm-inl.h"

namespace fastnorm::cpu {

#ifdef __AVX512BF16__
constinit const NormKernels kNormAvx512Bf16 = all_kernels();
#else
constinit const NormKernels kNormAvx512 = all_kernels();
#endif

}  // namespace fastnorm::cpu
