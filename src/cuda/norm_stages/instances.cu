// The kernels of calls with stages: see cuda/instances.cuh.
#include "cuda/norm_stages/kernel.cuh"
#include "cuda/norm_stages/list.h"

#define FASTNORM_FAMILY NormStagesFamily

namespace fastnorm::cuda {
namespace {

template <uint32_t kWord>
constexpr auto kernel_of() {
  constexpr StagesVariant kVariant = stages_variant_of(kWord);
  if constexpr (kVariant.is_rotated()) {
    return &norm_stages_rotated_kernel<FASTNORM_ARCH, kWord>;
  } else if constexpr (kVariant.is_held()) {
    return &norm_stages_held_kernel<FASTNORM_ARCH, kWord>;
  } else {
    return &norm_stages_kernel<FASTNORM_ARCH, kWord>;
  }
}

}  // namespace
}  // namespace fastnorm::cuda

#include "cuda/instances.cuh"
