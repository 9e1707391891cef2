// The kernels of peers: see cuda/instances.cuh.
#include "cuda/peer/kernel.cuh"
#include "cuda/peer/list.h"

#define FASTNORM_FAMILY PeerFamily

namespace fastnorm::cuda {
namespace {

template <uint32_t kWord>
constexpr auto kernel_of() {
  constexpr PeerVariant kVariant = peer_variant_of(kWord);
  if constexpr (kVariant.is_fused()) {
    return &peer_norm_kernel<FASTNORM_ARCH, kWord>;
  } else if constexpr (kVariant.form == PeerForm::kStatistics) {
    return &peer_statistics_kernel<FASTNORM_ARCH, kWord>;
  } else if constexpr (kVariant.form == PeerForm::kSharded) {
    return &peer_sharded_kernel<FASTNORM_ARCH, kWord>;
  } else {
    return &peer_sum_kernel<FASTNORM_ARCH, kWord>;
  }
}

}  // namespace
}  // namespace fastnorm::cuda

#include "cuda/instances.cuh"
