// The kernels of norm_heads_backward: see cuda/instances.cuh.
#include "cuda/norm_heads_backward/kernel.cuh"
#include "cuda/norm_heads_backward/list.h"

#define FASTNORM_FAMILY NormHeadsBackwardFamily

namespace fastnorm::cuda {
namespace {

template <uint32_t kWord>
constexpr auto kernel_of() {
  constexpr NormHeadsBackwardVariant kVariant = heads_backward_variant_of(kWord);
  if constexpr (kVariant.has_held_params()) {
    return &held_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>;
  } else if constexpr (kVariant.form == HeadsBackwardForm::kFold) {
    return &fold_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>;
  } else {
    return &norm_heads_backward_kernel<FASTNORM_ARCH, kWord>;
  }
}

}  // namespace
}  // namespace fastnorm::cuda

#include "cuda/instances.cuh"
