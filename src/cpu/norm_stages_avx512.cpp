// The kernels with stages for one instruction set; meson.build has its compiler flags.
#define FASTNORM_UNIT_AVX512
#include "cpu/norm_stages-inl.h"

namespace fastnorm::cpu {

constinit const StagesKernels kNormStagesAvx512 = kNormStagesOfUnit;

}  // namespace fastnorm::cpu
