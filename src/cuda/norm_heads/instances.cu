// The kernels of norm_heads of one architecture and dtype: compiled once for each, with
// FASTNORM_ARCH (90), FASTNORM_SPEC (kSm90, of arch.h) and FASTNORM_DTYPE (kF32, kF16, kBF16)
// defined.
#include <utility>

#include "cuda/arch.h"
#include "cuda/norm_heads/kernel.cuh"
#include "cuda/norm_heads/kernels.h"
#include "cuda/norm_heads/list.h"

namespace fastnorm::cuda {
namespace {

constexpr bool kHeld = FASTNORM_SPEC.holds_rows;
constexpr Dtype kDtype = Dtype::FASTNORM_DTYPE;

constexpr size_t first_of(Dtype dtype) {
  size_t first = 0;
  for (const uint32_t word : kHeadsWords<kHeld>)
    first += heads_variant_of(word).dtype < dtype ? 1 : 0;
  return first;
}
constexpr size_t kFirst = first_of(kDtype);
constexpr size_t kCount = first_of(static_cast<Dtype>(static_cast<int>(kDtype) + 1)) - kFirst;

template <size_t kIndex>
constexpr NormHeadsKernel kernel_at() {
  constexpr uint32_t kWord = kHeadsWords<kHeld>[kFirst + kIndex];
  if constexpr (heads_variant_of(kWord).is_held()) {
    return {nullptr, &held_heads_kernel<FASTNORM_ARCH, kWord>};
  } else {
    return {&norm_heads_kernel<FASTNORM_ARCH, kWord>, nullptr};
  }
}

template <size_t... kIndex>
constexpr std::array<NormHeadsKernel, kCount> make_kernels(std::index_sequence<kIndex...>) {
  return {kernel_at<kIndex>()...};
}

constexpr std::array<NormHeadsKernel, kCount> kKernels =
    make_kernels(std::make_index_sequence<kCount>());

}  // namespace

template <>
std::span<const NormHeadsKernel> norm_heads_kernels<FASTNORM_ARCH, kDtype>() {
  return kKernels;
}

}  // namespace fastnorm::cuda
