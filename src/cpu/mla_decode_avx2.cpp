// The MLA decode kernels for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_AVX2
#include "cpu/mla_decode-inl.h"

namespace fastnorm::cpu {

constinit const MlaDecodeKernels kMlaDecodeAvx2 = kMlaDecodeOfUnit;

}  // namespace fastnorm::cpu
