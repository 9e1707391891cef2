// What a kernel knows when it is compiled: its slots, its tile and bits of the call.
#pragma once

#include <type_traits>

#include "cuda/common/access.cuh"
#include "cuda/common/element.cuh"
#include "cuda/common/tile.cuh"
#include "cuda/norm/reach.cuh"
#include "cuda/norm/variant.h"

namespace fastnorm::cuda {

// The compile-time choices of one kernel, from its Variant.
template <uint64_t kOrder, uint64_t kPolicies>
struct Slots {
  static constexpr Variant kV = variant_of(kOrder, kPolicies);
  static constexpr Dtype kDtype = kV.key.dtype;
  static constexpr Source kSource = kV.key.source;
  static constexpr Stat kStat = kV.key.stat;
  static constexpr Affine kAffine = kV.key.affine;
  static constexpr Sink kSink = kV.key.sink;
  static constexpr Flavour kFlavour = kV.key.flavour;
  static constexpr Access kAccess = kV.key.access;
  using T = Element<kDtype>;
  static constexpr bool kShares = kV.weights == Weights::kShared;
  // Additions and products are of two numbers of x's dtype. f32 arithmetic with a rounding after it
  // gives the same result. It holds a product of two such numbers exactly, and twice the digits
  // that their sum needs.
  static constexpr bool kRounds =
      kFlavour == Flavour::kRounded || kFlavour == Flavour::kRoundedStreaming;
  // Folds over a row of one value per thread, besides LAYER's of two values.
  static constexpr bool kLayer = kStat == Stat::kLayer;
  static constexpr int kFolds = (kLayer ? 0 : 1) + (kSink == Sink::kQuant ? 1 : 0);
};

template <class Slots>
using RowTileOf = RowTile<Slots::kV.tile.threads, Slots::kV.tile.vectors, Slots::kV.tile.blocks>;

template <class Slots, class Tile>
using RowReach =
    std::conditional_t<Slots::kV.has(Variant::kEveryVector), EveryReach<typename Slots::T, Tile>,
                       Reach<Slots::kAccess, typename Slots::T, Tile>>;

// The call's bits. Those that the kernel knows are constants; a general kernel knows none.
template <class Slots, class Tile>
__device__ __forceinline__ uint32_t bits_of(uint32_t bits) {
  if constexpr (Slots::kFlavour == Flavour::kGeneral) {
    return bits;
  } else {
    constexpr bool kF32 = Slots::kAffine == Affine::kF32;
    constexpr bool kOneRow = Tile::kRows == 1;  // of a block
    constexpr uint32_t kOpen = kWaitFirst | kWaitAfterWeights | kTrigger | kNeverSet |
                               kStoreStatistics | (kOneRow ? 0 : kSingleIndex) | kStreamLoads,
                       kWeight = kF32 ? kWeightF32 : kWeightElement,
                       kBias = Slots::kStat == Stat::kRms ? 0
                               : kF32                     ? kBiasF32
                                                          : kBiasElement;
    return (bits & kOpen) | (kOneRow ? kSingleIndex : 0) | kWeight | kBias;
  }
}

// The bits with what a lean kernel with several rows per block knows. With a residual, rows have
// one index. In grids of one call, kernels that run pairs also have rows of one index. In grids of
// pairs, rows have two indices, and loads are cached.
template <class Slots, class Tile, bool kPair>
__device__ __forceinline__ uint32_t with_known_indices(uint32_t bits) {
  if constexpr (Slots::kFlavour == Flavour::kGeneral || Tile::kRows == 1) {
    return bits;
  } else if constexpr (kPair) {
    return bits & ~(kSingleIndex | kStreamLoads);
  } else {
    constexpr bool kOne = Slots::kSource == Source::kAdd || Slots::kSink == Sink::kStore;
    return kOne ? bits | kSingleIndex : bits;
  }
}

}  // namespace fastnorm::cuda
