// The kernels of norm_heads_backward for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_AVX2
#include "cpu/norm_heads_backward-inl.h"

namespace fastnorm::cpu {

constinit const NormHeadsBackwardKernels kNormHeadsBackwardAvx2 = heads_backward_kernels();

}  // namespace fastnorm::cpu
