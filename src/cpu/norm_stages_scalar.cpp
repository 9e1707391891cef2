// The kernels with stages for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_SCALAR
#include "cpu/norm_stages-inl.h"

namespace fastnorm::cpu {

constinit const StagesKernels kNormStagesScalar = kNormStagesOfUnit;

}  // namespace fastnorm::cpu
