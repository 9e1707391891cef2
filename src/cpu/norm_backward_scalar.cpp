// The backward kernels for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_SCALAR
#include "cpu/norm_backward_kernels-inl.h"

namespace fastnorm::cpu {

constinit const NormBackwardKernels kNormBackwardScalar = backward_kernels();

}  // namespace fastnorm::cpu
