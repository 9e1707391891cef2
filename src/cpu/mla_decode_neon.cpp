// The MLA decode kernels for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_NEON
#include "cpu/mla_decode-inl.h"

namespace fastnorm::cpu {

constinit const MlaDecodeKernels kMlaDecodeNeon = kMlaDecodeOfUnit;

}  // namespace fastnorm::cpu
