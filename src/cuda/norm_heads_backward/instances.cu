// The kernels of norm_heads_backward of one architecture and dtype: compiled once for each, with
// FASTNORM_ARCH (90), FASTNORM_SPEC (kSm90, of arch.h) and FASTNORM_DTYPE (kF32, kF16, kBF16)
// defined.
#include <utility>

#include "cuda/arch.h"
#include "cuda/norm_heads_backward/kernel.cuh"
#include "cuda/norm_heads_backward/kernels.h"
#include "cuda/norm_heads_backward/list.h"

namespace fastnorm::cuda {
namespace {

constexpr bool kHeld = FASTNORM_SPEC.holds_rows;
constexpr Dtype kDtype = Dtype::FASTNORM_DTYPE;

constexpr size_t first_of(Dtype dtype) {
  size_t first = 0;
  for (const uint32_t word : kHeadsBackwardWords<kHeld>)
    first += heads_backward_variant_of(word).dtype < dtype ? 1 : 0;
  return first;
}
constexpr size_t kFirst = first_of(kDtype);
constexpr size_t kCount = first_of(static_cast<Dtype>(static_cast<int>(kDtype) + 1)) - kFirst;

template <size_t kIndex>
constexpr NormHeadsBackwardKernel kernel_at() {
  constexpr uint32_t kWord = kHeadsBackwardWords<kHeld>[kFirst + kIndex];
  constexpr HeadsBackwardForm kForm = heads_backward_variant_of(kWord).form;
  if constexpr (kForm == HeadsBackwardForm::kHeld) {
    return {nullptr, &held_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>, nullptr};
  } else if constexpr (kForm == HeadsBackwardForm::kTokens) {
    return {nullptr, &tokens_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>, nullptr};
  } else if constexpr (kForm == HeadsBackwardForm::kFold) {
    return {nullptr, nullptr, &fold_norm_heads_backward_kernel<FASTNORM_ARCH, kWord>};
  } else {
    return {&norm_heads_backward_kernel<FASTNORM_ARCH, kWord>, nullptr, nullptr};
  }
}

template <size_t... kIndex>
constexpr std::array<NormHeadsBackwardKernel, kCount> make_kernels(std::index_sequence<kIndex...>) {
  return {kernel_at<kIndex>()...};
}

constexpr std::array<NormHeadsBackwardKernel, kCount> kKernels =
    make_kernels(std::make_index_sequence<kCount>());

}  // namespace

template <>
std::span<const NormHeadsBackwardKernel> norm_heads_backward_kernels<FASTNORM_ARCH, kDtype>() {
  return kKernels;
}

}  // namespace fastnorm::cuda
