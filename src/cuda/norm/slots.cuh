// What a kernel knows while it is compiled: its slots, its tile and bits of the call.
#pragma once

#include <type_traits>

#include "cuda/common/access.cuh"
#include "cuda/common/element.cuh"
#include "cuda/common/tile.cuh"
#include "cuda/norm/variant.h"

namespace fastnorm::cuda {

// The compile-time choices of one kernel: what its Variant says.
template <uint64_t kOrder, uint64_t kPolicies>
struct Slots {
  static constexpr Variant kV = variant_of(kOrder, kPolicies);
  static constexpr Dtype kDtype = kV.key.dtype;
  static constexpr Source kSource = kV.key.source;
  static constexpr Stat kStat = kV.key.stat;
  static constexpr Affine kAffine = kV.key.affine;
  static constexpr Sink kSink = kV.key.sink;
  static constexpr Beside kBeside = kV.key.beside;
  static constexpr Access kAccess = kV.key.access;
  using T = Element<kDtype>;
  static constexpr bool kShares = kV.weights == Weights::kShared;
  // The sum and the product are of two numbers of x's dtype. f32 arithmetic, rounded after it,
  // gives the same: it holds a product of two exactly, and twice the digits that a sum needs.
  static constexpr bool kRounds = kBeside == Beside::kRounded || kBeside == Beside::kRoundedCs;
  // Folds over a row of one value a thread, beside LAYER's of two.
  static constexpr bool kLayer = kStat == Stat::kLayer;
  static constexpr int kFolds = (kLayer ? 0 : 1) + (kSink == Sink::kQuant ? 1 : 0);
};

template <class Slots>
using RowTileOf = RowTile<Slots::kV.tile.threads, Slots::kV.tile.vectors, Slots::kV.tile.blocks>;

template <class Slots, class Tile>
using RowReach =
    std::conditional_t<Slots::kV.has(Variant::kEveryVector), EveryReach<typename Slots::T, Tile>,
                       Reach<Slots::kAccess, typename Slots::T, Tile>>;

// A call's bits, with those that the kernel knows as constants. A general kernel knows none.
template <class Slots, class Tile>
__device__ __forceinline__ uint32_t bits_of(uint32_t bits) {
  if constexpr (Slots::kBeside == Beside::kAny) {
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

// The same with what a bare kernel of several rows a block knows beside. Sums have rows of one
// index alone. So do kernels that run pairs, in grids of one call; in grids of pairs they take two
// indices and cached loads.
template <class Slots, class Tile, bool kPair>
__device__ __forceinline__ uint32_t with_known_indices(uint32_t bits) {
  if constexpr (Slots::kBeside == Beside::kAny || Tile::kRows == 1) {
    return bits;
  } else if constexpr (kPair) {
    return bits & ~(kSingleIndex | kStreamLoads);
  } else {
    constexpr bool kOne = Slots::kSource == Source::kAdd || Slots::kSink == Sink::kStore;
    return kOne ? bits | kSingleIndex : bits;
  }
}

}  // namespace fastnorm::cuda
