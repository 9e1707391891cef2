// The kernels of peers: one function for each kind of argument, whose word says which.
#pragma once

#include "core/peer/plan.h"
#include "cuda/common/bodies.cuh"
#include "cuda/peer/oneshot.cuh"
#include "cuda/peer/sharded.cuh"
#include "cuda/peer/sharded_norm.cuh"
#include "cuda/peer/sum.cuh"
#include "cuda/peer/twoshot.cuh"

namespace fastnorm::cuda {

// The norm's slots of a fused kernel: its general form or its lean one for aligned rows, with a
// residual. A call without one gets -0, which changes no sum.
constexpr Variant norm_variant_of(const PeerVariant& v) {
  Variant norm;
  norm.key = {v.dtype,
              Source::kAdd,
              v.stat,
              Affine::kOnce,
              v.sink,
              Access::kVector,
              v.lean ? Flavour::kLean : Flavour::kGeneral};
  norm.tile = {v.threads, v.vectors, v.blocks};
  norm.weights = v.late ? Weights::kLate : Weights::kEarly;
  norm.group = 1;
  norm.round = RoundRow::kInPlace;
  norm.blocks_per_sm = static_cast<uint8_t>(v.per_sm);
  norm.policies = Variant::kKeepsRow | Variant::kEveryVector | Variant::kStoresY;
  return norm;
}

template <uint32_t kWord>
struct PeerSlots {
  static constexpr PeerVariant kVariant = peer_variant_of(kWord);
  static constexpr Variant kNorm = norm_variant_of(kVariant);
  using Norm = Slots<packed(kNorm.key, kNorm.tile), kNorm.packed_policies()>;
  using Tile = LoopTile<kVariant.threads, kVariant.vectors, kVariant.blocks>;
};

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(peer_variant_of(kWord).threads, peer_variant_of(kWord).per_sm)
    peer_norm_kernel(const __grid_constant__ PeerNormParams p) {
  using Slots = PeerSlots<kWord>;
  constexpr int kGroup = Slots::kVariant.group;
  if constexpr (!kHasBodies || (Slots::kVariant.is_cluster() && !ptx::kHasClusters)) {
  } else if constexpr (Slots::kVariant.form == PeerForm::kOneShot) {
    one_shot<typename Slots::Norm, typename Slots::Tile, kGroup>(p);
  } else {
    two_shot<typename Slots::Norm, typename Slots::Tile, kGroup>(p);
  }
}

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(peer_variant_of(kWord).threads, peer_variant_of(kWord).per_sm)
    peer_sum_kernel(const __grid_constant__ PeerSumParams p) {
  static_assert(peer_variant_of(kWord).threads == kPeerSumThreads);
  using T = Element<peer_variant_of(kWord).dtype>;
  if constexpr (!kHasBodies) {
  } else if constexpr (peer_variant_of(kWord).form == PeerForm::kSum) {
    sum_one_shot<T>(p);
  } else {
    sum_two_shot<T>(p);
  }
}

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(peer_variant_of(kWord).threads, peer_variant_of(kWord).per_sm)
    peer_statistics_kernel(const __grid_constant__ PeerStatisticsParams p) {
  static_assert(peer_variant_of(kWord).threads == kPeerStatisticsThreads);
  if constexpr (kHasBodies) exchange_statistics(p);
}

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(peer_variant_of(kWord).threads, peer_variant_of(kWord).per_sm)
    peer_sharded_kernel(const __grid_constant__ PeerShardedParams p) {
  constexpr PeerVariant kV = peer_variant_of(kWord);
  if constexpr (kHasBodies) sharded_norm<Element<kV.dtype>, kV.threads, kV.vectors, kV.late>(p);
}

}  // namespace fastnorm::cuda
