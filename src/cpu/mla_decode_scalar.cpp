// The MLA decode kernels for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_SCALAR
#include "cpu/mla_decode-inl.h"

namespace fastnorm::cpu {

constinit const MlaDecodeKernels kMlaDecodeScalar = kMlaDecodeOfUnit;

}  // namespace fastnorm::cpu
