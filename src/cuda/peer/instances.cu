// The kernels of peers of one architecture and dtype: compiled once for each, with FASTNORM_ARCH
// (90) and FASTNORM_DTYPE (kF32, kF16, kBF16) defined.
#include "cuda/peer/kernel.cuh"
#include "cuda/peer/kernels.h"
#include "cuda/peer/list.h"

namespace fastnorm::cuda {
namespace {

constexpr Dtype kDtype = Dtype::FASTNORM_DTYPE;

struct Maker {
  template <uint32_t kWord>
  static constexpr PeerKernel of() {
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
};

constexpr auto kKernels = make_kernels<PeerFamily, Maker, true, kDtype>();

}  // namespace

template <>
std::span<const PeerKernel> peer_kernels<FASTNORM_ARCH, kDtype>() {
  return kKernels;
}

}  // namespace fastnorm::cuda
