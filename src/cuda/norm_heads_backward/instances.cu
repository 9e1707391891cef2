// The kernels of norm_heads_backward: see cuda/instances.cuh.
#include "cuda/norm_heads_backward/kernel.cuh"
#include "cuda/norm_heads_backward/list.h"

#define FASTNORM_FAMILY NormHeadsBackwardFamily

namespace fastnorm::cuda {
namespace {

template <uint32_t kWord>
constexpr auto kernel_of() {
  constexpr HeadsBackwardForm kForm = heads_backward_variant_of(kWord).form;
  if constexpr (kForm == HeadsBackwardForm::kHeld) {
    return &held_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>;
  } else if constexpr (kForm == HeadsBackwardForm::kTokens) {
    return &tokens_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>;
  } else if constexpr (kForm == HeadsBackwardForm::kWhole) {
    return &whole_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>;
  } else if constexpr (kForm == HeadsBackwardForm::kFold) {
    return &fold_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>;
  } else {
    return &norm_heads_backward_kernel<FASTNORM_ARCH, kWord>;
  }
}

}  // namespace
}  // namespace fastnorm::cuda

#include "cuda/instances.cuh"
