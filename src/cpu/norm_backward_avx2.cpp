// The backward kernels for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_AVX2
#include "cpu/norm_backward_kernels-inl.h"

namespace fastnorm::cpu {

constinit const NormBackwardKernels kNormBackwardAvx2 = backward_kernels();

}  // namespace fastnorm::cpu
