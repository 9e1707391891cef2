// From a call to what its kernel gets. CUDA-free.
#pragma once

#include "core/peer/link.h"
#include "core/peer/plan.h"
#include "cuda/peer/params.h"

namespace fastnorm::cuda {

// What stays the same for all calls of a rank: all but the call's header and its rings.
PeerExchange make_peer_exchange(const PeerDesc& desc, void* const* buffers, PeerControl* control,
                                uint32_t* report);

PeerNormParams make_peer_norm_params(const PeerExchange& exchange, const PeerNorm& call);
PeerSumParams make_peer_sum_params(const PeerExchange& exchange, const PeerSum& call);
PeerStatisticsParams make_peer_statistics_params(const PeerExchange& exchange,
                                                 const PeerStatistics& call);
PeerShardedParams make_peer_sharded_params(const PeerExchange& exchange,
                                           const PeerShardedNorm& call);

}  // namespace fastnorm::cuda
