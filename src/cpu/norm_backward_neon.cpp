// The backward kernels for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_NEON
#include "cpu/norm_backward_kernels-inl.h"

namespace fastnorm::cpu {

constinit const NormBackwardKernels kNormBackwardNeon = backward_kernels();

}  // namespace fastnorm::cpu
