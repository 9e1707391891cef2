// The kernels of norm_backward of one architecture and dtype. The build compiles this file once for
// each, with FASTNORM_ARCH (90), FASTNORM_SPEC (kSm90, of arch.h) and FASTNORM_DTYPE (kF32, kF16,
// kBF16).
#include <utility>

#include "cuda/arch.h"
#include "cuda/norm_backward/kernel.cuh"
#include "cuda/norm_backward/kernels.h"
#include "cuda/norm_backward/list.h"

namespace fastnorm::cuda {
namespace {

constexpr bool kHeld = FASTNORM_SPEC.holds_rows;
constexpr Dtype kDtype = Dtype::FASTNORM_DTYPE;

constexpr size_t first_of(Dtype dtype) {
  size_t first = 0;
  for (const uint64_t word : kBackwardWords<kHeld>)
    first += backward_variant_of(word).dtype < dtype ? 1 : 0;
  return first;
}
constexpr size_t kFirst = first_of(kDtype);
constexpr size_t kCount = first_of(static_cast<Dtype>(static_cast<int>(kDtype) + 1)) - kFirst;

template <size_t kIndex>
constexpr NormBackwardKernel kernel_at() {
  constexpr uint64_t kWord = kBackwardWords<kHeld>[kFirst + kIndex];
  return &norm_backward_kernel<FASTNORM_ARCH, kWord>;
}

template <size_t... kIndex>
constexpr std::array<NormBackwardKernel, kCount> make_kernels(std::index_sequence<kIndex...>) {
  return {kernel_at<kIndex>()...};
}

constexpr std::array<NormBackwardKernel, kCount> kKernels =
    make_kernels(std::make_index_sequence<kCount>());

}  // namespace

template <>
std::span<const NormBackwardKernel> norm_backward_kernels<FASTNORM_ARCH, kDtype>() {
  return kKernels;
}

}  // namespace fastnorm::cuda
