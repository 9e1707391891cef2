// The kernels of peers by address, in the order of the table. CUDA-free.
#pragma once

#include <span>

#include "cuda/family.h"
#include "cuda/peer/params.h"

namespace fastnorm::cuda {

// The argument depends on the form: all but one are null.
struct PeerKernel {
  void (*norm)(PeerNormParams);
  void (*sum)(PeerSumParams);
  void (*statistics)(PeerStatisticsParams);
  void (*sharded)(PeerShardedParams);

  const void* address() const {
    return norm != nullptr         ? reinterpret_cast<const void*>(norm)
           : sum != nullptr        ? reinterpret_cast<const void*>(sum)
           : statistics != nullptr ? reinterpret_cast<const void*>(statistics)
                                   : reinterpret_cast<const void*>(sharded);
  }
};

// Those of one dtype: neighbours in the table.
template <int kArch, Dtype kDtype>
std::span<const PeerKernel> peer_kernels();

using PeerKernels = FamilyKernels<PeerKernel>;

template <int kArch>
PeerKernels all_peer_kernels() {
  return {{peer_kernels<kArch, Dtype::kF32>(), peer_kernels<kArch, Dtype::kF16>(),
           peer_kernels<kArch, Dtype::kBF16>()}};
}

}  // namespace fastnorm::cuda
