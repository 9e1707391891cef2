// The kernels of peers of one architecture and dtype: compiled once for each, with FASTNORM_ARCH
// (90) and FASTNORM_DTYPE (kF32, kF16, kBF16) defined.
#include <utility>

#include "cuda/peer/kernel.cuh"
#include "cuda/peer/kernels.h"
#include "cuda/peer/list.h"

namespace fastnorm::cuda {
namespace {

constexpr Dtype kDtype = Dtype::FASTNORM_DTYPE;

constexpr size_t first_of(Dtype dtype) {
  size_t first = 0;
  for (const uint32_t word : kPeerWords) first += peer_variant_of(word).dtype < dtype ? 1 : 0;
  return first;
}
constexpr size_t kFirst = first_of(kDtype);
constexpr size_t kCount = first_of(static_cast<Dtype>(static_cast<int>(kDtype) + 1)) - kFirst;

template <size_t kIndex>
constexpr PeerKernel kernel_at() {
  constexpr uint32_t kWord = kPeerWords[kFirst + kIndex];
  constexpr PeerVariant kVariant = peer_variant_of(kWord);
  if constexpr (kVariant.is_fused()) {
    return {&peer_norm_kernel<FASTNORM_ARCH, kWord>, nullptr, nullptr, nullptr};
  } else if constexpr (kVariant.form == PeerForm::kStatistics) {
    return {nullptr, nullptr, &peer_statistics_kernel<FASTNORM_ARCH, kWord>, nullptr};
  } else if constexpr (kVariant.form == PeerForm::kSharded) {
    return {nullptr, nullptr, nullptr, &peer_sharded_kernel<FASTNORM_ARCH, kWord>};
  } else {
    return {nullptr, &peer_sum_kernel<FASTNORM_ARCH, kWord>, nullptr, nullptr};
  }
}

template <size_t... kIndex>
constexpr std::array<PeerKernel, kCount> make_kernels(std::index_sequence<kIndex...>) {
  return {kernel_at<kIndex>()...};
}

constexpr std::array<PeerKernel, kCount> kKernels =
    make_kernels(std::make_index_sequence<kCount>());

}  // namespace

template <>
std::span<const PeerKernel> peer_kernels<FASTNORM_ARCH, kDtype>() {
  return kKernels;
}

}  // namespace fastnorm::cuda
