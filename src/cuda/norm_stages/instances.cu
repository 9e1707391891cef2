// The kernels of calls with stages of one architecture and dtype: compiled once for each, with
// FASTNORM_ARCH (90), FASTNORM_SPEC (kSm90, of arch.h) and FASTNORM_DTYPE (kF32, kF16, kBF16)
// defined.
#include <utility>

#include "cuda/arch.h"
#include "cuda/norm_stages/kernel.cuh"
#include "cuda/norm_stages/kernels.h"
#include "cuda/norm_stages/list.h"

namespace fastnorm::cuda {
namespace {

constexpr bool kHeld = FASTNORM_SPEC.holds_rows;
constexpr Dtype kDtype = Dtype::FASTNORM_DTYPE;

constexpr size_t first_of(Dtype dtype) {
  size_t first = 0;
  for (const StagesEntry& entry : kStagesEntries<kHeld>)
    first += entry.variant.dtype < dtype ? 1 : 0;
  return first;
}
constexpr size_t kFirst = first_of(kDtype);
constexpr size_t kCount = first_of(static_cast<Dtype>(static_cast<int>(kDtype) + 1)) - kFirst;

template <size_t kIndex>
constexpr NormStagesKernel kernel_at() {
  constexpr uint32_t kWord = packed(kStagesEntries<kHeld>[kFirst + kIndex].variant);
  if constexpr (stages_variant_of(kWord).is_held()) {
    return {nullptr, &norm_stages_held_kernel<FASTNORM_ARCH, kWord>};
  } else {
    return {&norm_stages_kernel<FASTNORM_ARCH, kWord>, nullptr};
  }
}

template <size_t... kIndex>
constexpr std::array<NormStagesKernel, kCount> make_kernels(std::index_sequence<kIndex...>) {
  return {kernel_at<kIndex>()...};
}

constexpr std::array<NormStagesKernel, kCount> kKernels =
    make_kernels(std::make_index_sequence<kCount>());

}  // namespace

template <>
std::span<const NormStagesKernel> norm_stages_kernels<FASTNORM_ARCH, kDtype>() {
  return kKernels;
}

}  // namespace fastnorm::cuda
