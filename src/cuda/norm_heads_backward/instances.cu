// The kernels of norm_heads_backward of one architecture and dtype: compiled once for each, with
// FASTNORM_ARCH (90), FASTNORM_SPEC (kSm90, of arch.h) and FASTNORM_DTYPE (kF32, kF16, kBF16)
// defined.
#include "cuda/arch.h"
#include "cuda/norm_heads_backward/kernel.cuh"
#include "cuda/norm_heads_backward/kernels.h"
#include "cuda/norm_heads_backward/list.h"

namespace fastnorm::cuda {
namespace {

constexpr bool kHeld = FASTNORM_SPEC.holds_rows;
constexpr Dtype kDtype = Dtype::FASTNORM_DTYPE;

struct Maker {
  template <uint32_t kWord>
  static constexpr NormHeadsBackwardKernel of() {
    constexpr HeadsBackwardForm kForm = heads_backward_variant_of(kWord).form;
    if constexpr (kForm == HeadsBackwardForm::kHeld) {
      return {nullptr, &held_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>, nullptr};
    } else if constexpr (kForm == HeadsBackwardForm::kTokens) {
      return {nullptr, &tokens_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>, nullptr};
    } else if constexpr (kForm == HeadsBackwardForm::kWhole) {
      return {nullptr, &whole_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>, nullptr};
    } else if constexpr (kForm == HeadsBackwardForm::kFold) {
      return {nullptr, nullptr, &fold_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>};
    } else {
      return {&norm_heads_backward_kernel<FASTNORM_ARCH, kWord>, nullptr, nullptr};
    }
  }
};

constexpr auto kKernels = make_kernels<HeadsBackwardFamily, Maker, kHeld, kDtype>();

}  // namespace

template <>
std::span<const NormHeadsBackwardKernel> norm_heads_backward_kernels<FASTNORM_ARCH, kDtype>() {
  return kKernels;
}

}  // namespace fastnorm::cuda
