// The forward row kernel: Source -> Stat -> Affine -> Sink, with the row in registers.
//
// Its Variant decides every policy (variant.h); the kernel knows no tile. stream.cuh shares its
// parts. That is another body, for rows that do not fit in registers.
//
// Memory: each input is read once, and each output is written once.
// Registers: the row, the weights that are loaded early, and about 20 for addresses.
// Shared memory: one float per thread and sum, or two in wide rows. A cluster adds 128 bytes per
// block. Unaligned rows are there too (staged.cuh), and weight and bias with Weights::kShared.
// Schedule:
//   1. issue all loads of the weights and the row
//   2. store x + residual at once, so that the store overlaps the reduction
//   3. compute the canonical sum (LAYER: two at once, in two passes): tile.cuh
//   4. compute the exact 1/sqrt, apply, store
// Blocks are not persistent: the hardware scheduler balances one-row blocks better than a fixed
// partition does.
#pragma once

#include "cuda/common/bodies.cuh"
#include "cuda/common/ptx/grid.cuh"
#include "cuda/norm/finish.cuh"
#include "cuda/norm/prefetch.cuh"
#include "cuda/norm/quant.cuh"
#include "cuda/norm/stream.cuh"

namespace fastnorm::cuda {

// Completes unaligned rows between their loads and their first use.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void complete_unaligned(RowSource<Slots, Tile>& source,
                                                   const WeightTails<Slots, Tile>& tails,
                                                   RowState<Slots, Tile>& row,
                                                   const Place<Tile>& place, const Reach& reach) {
  using State = RowState<Slots, Tile>;
  source.complete(place);
  if (reach.last_elements != 0) tails.complete(place);
  ptx::copy_async_wait();
  sync_row<Tile>();
  source.take_all(place, reach);
  constexpr int kEarly = State::kHasFours      ? Slots::kV.fours_early
                         : State::kEarlyWeight ? Tile::kVectors
                                               : 0;
#pragma unroll
  for (int i = 0; i < kEarly; ++i) {
    take_tails<Slots, Tile>(row.weight[i], row.bias[Slots::kStat == Stat::kLayer ? i : 0], i,
                            reach);
  }
}

template <bool kUnasked>
__device__ __forceinline__ void wait_if(bool wanted) {
  if constexpr (kUnasked) {
    ptx::grid_wait();
  } else {
    ptx::grid_wait_if(wanted);
  }
}

// This thread's row. Threads past the last row get row 0 and live = false, so that their loads are
// valid.
template <class Tile, GridForm kForm>
struct RowPlace {
  __device__ __forceinline__ RowPlace(const NormParams& p, const Place<Tile>& place,
                                      uint32_t bits) {
    live = Tile::kRows == 1 || place.row < p.rows;
    const uint32_t row = live ? place.row : 0;
    if constexpr (kForm == GridForm::kHeads) {
      index = {false, {row, blockIdx.y, 0}};
    } else {
      constexpr int kMost = kForm == GridForm::kPair ? 2 : 3;
      index = row_index<kMost, Tile::kRows == 1>(p, row, bits);
    }
  }

  RowIndex index;
  bool live;
};

// The second half in the variant's form, with or without rounding of the normalised row.
template <class Slots, class Tile, class Reach, class R>
__device__ __forceinline__ void finish_row(const NormParams& p, RowState<Slots, Tile>& row,
                                           const RowIndex& out, const Place<Tile>& place,
                                           const Reach& reach, const R& rounding) {
  using T = typename Slots::T;
  const auto finish = [&](const auto& how) {
    if constexpr (Slots::kAffine == Affine::kF32) {
      finish_by_fours<Slots, Tile>(p, row, out, place, reach, how);
    } else if constexpr (Slots::kSink == Sink::kStatic) {
      if (p.quant.code_type == CodeType::kE4M3) {
        finish_vectors<Slots, Tile, CodeType::kE4M3>(p, row, out, place, reach, how);
      } else {
        finish_vectors<Slots, Tile, CodeType::kI8>(p, row, out, place, reach, how);
      }
    } else {
      finish_vectors<Slots, Tile>(p, row, out, place, reach, how);
    }
  };
  constexpr RoundRow kRound = Slots::kV.round;
  if constexpr (Slots::kAccess == Access::kAny) {
    finish_any<Slots, Tile>(p, row, out, place, reach);
  } else if constexpr (kRound == RoundRow::kPredicate) {
    finish(rounding);
  } else if constexpr (kRound == RoundRow::kInPlace) {
    row.held.normalize(row.mean, row.rstd, rounding);
    finish(KnownRounding<T, false>());
  } else if (T::kBytes == 2 && __builtin_expect(rounding.round_normalized(), 0)) {
    finish(KnownRounding<T, true>());
  } else {
    finish(KnownRounding<T, false>());
  }
  if constexpr (Slots::kAccess == Access::kUnaligned) {
    RowSource<Slots, Tile>::finish_sum(p, out, place, reach.live);
    if constexpr (Slots::kSink == Sink::kStore) store_results<Slots, Tile>(p, out, place, reach);
  }
}

// Not before the wait: an earlier kernel may write the scale.
template <class Slots, class Tile>
__device__ __forceinline__ void load_static_scale(const NormParams& p, RowState<Slots, Tile>& row) {
  if constexpr (Slots::kSink == Sink::kStatic)
    row.static_scale = ptx::ld_global_f32(p.quant.static_scale);
  if constexpr (Slots::kSink == Sink::kQuant) {
    if (p.quant.static_scale != nullptr)
      row.static_scale = ptx::ld_global_f32(p.quant.static_scale);
  }
}

template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void quantize_row(const NormParams& p, RowState<Slots, Tile>& row,
                                             const RowIndex& out, const Place<Tile>& place,
                                             const Reach& reach, FoldScratch<Tile>& scratch) {
  quantize_in_registers<Slots, Tile>(
      p, row.held.results(), row.static_scale,
      Slots::kV.has(Variant::kPlaceAnew)
          ? row_index(p, place.row_again(), bits_of<Slots, Tile>(p.bits_again))
          : out,
      place, reach, scratch);
}

// After all threads have taken their vectors, results replace the row in shared memory. Rows of
// several warps had a barrier in the sum.
template <class Slots, class Tile>
__device__ __forceinline__ void free_staged_row() {
  if constexpr (Slots::kAccess == Access::kUnaligned && Tile::kOneWarp) sync_row<Tile>();
}

// Mean and rstd of a loaded row. Also stores x + residual.
template <class Slots, class Tile, class Reach, class R, class Scratch>
__device__ __forceinline__ void reduce_row(const NormParams& p, RowState<Slots, Tile>& row,
                                           const RowSource<Slots, Tile>& source,
                                           const FirstElement<Slots, Tile>& first,
                                           const RowIndex& index, const Place<Tile>& place,
                                           const Reach& reach, const R& rounding,
                                           Scratch& scratch) {
  // If every thread loads the row's first element, x + residual may replace the row only after the
  // first fold.
  constexpr bool kSumLater =
      FirstElement<Slots, Tile>::kReads && Slots::kAccess != Access::kUnaligned;
  if constexpr (Slots::kSource == Source::kAdd && !kSumLater)
    source.store_sum(p, index, place, reach, row.held.values);
  row.held.round_sum(rounding);
  if constexpr (Slots::kStat == Stat::kLayer) {
    row.held.hold();
    float s[Slots::T::kPerVector];
    row.held.get(s, 0);
    const LayerStatistics statistics = layer_statistics(
        first.value(s[0], rounding), p, rounding,
        [&](int pass, float from, bool steps) {
          return row_moments(row.held, from, reach, steps, scratch.moments[pass], place);
        },
        [&](int pass, float from) {
          // A value rounded to its dtype rounds to itself.
          if constexpr (Slots::kSource == Source::kAdd && kSumLater) {
            if (pass == 0) source.store_sum(p, index, place, reach, row.held.values);
          }
          row.held.renew(p, from);
        });
    row.mean = statistics.mean();
    row.rstd = statistics.rstd(p, rounding);
  } else {
    float q[Tile::kVectors];
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v) {
      float s[Slots::T::kPerVector];
      row.held.get(s, v);
      q[v] = squares<typename Slots::T>(s, rounding.every_step);
    }
    if constexpr (Slots::kV.has(Variant::kReadyWeights) && Tile::kCluster)
      make_weights_ready(p, row);
    row.rstd = rstd_of(__fmul_rn(sum_row(q, scratch.fold[0], place), p.inv_n), p, rounding);
    row.held.renew(p, row.rstd);
  }
}

// Weights are usually loaded first, so that the first use of the row follows every load, also in
// the compiler's order. In clusters the row is first, because all blocks wait for the same weights.
template <class Slots, class Tile, GridForm kForm = GridForm::kRows>
__device__ __forceinline__ void normalize_in_registers(const NormParams& p, uint32_t block) {
  auto& scratch = ptx::block_shared<RowScratch<Tile, Slots::kFolds, Slots::kLayer>>();
  cluster_begin(scratch);
  const uint32_t bits = with_known_indices<Slots, Tile, kForm != GridForm::kRows>(
      bits_of<Slots, Tile>(ptx::in_register(p.bits)));  // for all tests before the reduction
  const Place<Tile> place(block);
  const RowPlace<Tile, kForm> row_place(p, place, bits);
  const RowIndex& index = row_place.index;
  const RowReach<Slots, Tile> reach(p, place, row_place.live);
  const auto rounding = rounding_of<Slots, Tile>(p, bits);
  RowState<Slots, Tile> row;
  constexpr bool kRowFirst = Slots::kV.has(Variant::kRowFirst);
  constexpr bool kWaitsOnce = kRowFirst || Tile::kRows > 1;  // short rows: fewer instructions
  wait_if<kWaitsOnce && Slots::kV.has(Variant::kWaitsUnasked)>(
      (bits & (kWaitsOnce ? kWaitFirst | kWaitAfterWeights : kWaitFirst)) != 0);
  if constexpr (!kRowFirst) {
    load_ahead(p, row, index, place, reach, bits);
    if constexpr (!kWaitsOnce)
      wait_if<Slots::kV.has(Variant::kWaitsUnasked)>((bits & kWaitAfterWeights) != 0);
  }
  RowSource<Slots, Tile> source(p, index, place, reach, bits);
  if constexpr (kRowFirst) load_ahead(p, row, index, place, reach, bits);
  WeightTails<Slots, Tile> tails;
  tails.load(p, index, place, bits);
  FirstElement<Slots, Tile> first;
  first.load(p, index);
  load_static_scale<Slots, Tile>(p, row);
  prefetch_row<Slots, Tile>(p, place);
  if ((bits_of<Slots, Tile>(p.bits_again) & kTrigger) != 0) ptx::grid_trigger();
  cluster_ready(scratch);
  if constexpr (Slots::kAccess == Access::kUnaligned)
    complete_unaligned(source, tails, row, place, reach);
  if constexpr (Slots::kRounds) source.add_words();
  if constexpr (Slots::kV.has(Variant::kReadyWeights) && !Tile::kCluster)
    make_weights_ready(p, row);
  if constexpr (Slots::kAccess == Access::kAny) {
    source.take_whole(row.held.values);
    source.take_short(row.held.values);
  } else {
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v) row.held.set(source, v);
  }
  reduce_row(p, row, source, first, index, place, reach, rounding, scratch);
  free_staged_row<Slots, Tile>();
  if constexpr (Slots::kShares) SharedWeights<Slots, Tile>::wait();
  const RowIndex out = Slots::kV.has(Variant::kKeepsRow)
                           ? index
                           : row_index(p, place.row_again(), bits_of<Slots, Tile>(p.bits_again));
  if constexpr (Slots::kSink == Sink::kStatic) row.static_scale = __frcp_rn(row.static_scale);
  finish_row<Slots, Tile>(p, row, out, place, reach, rounding);
  if constexpr (Slots::kSink == Sink::kQuant)
    quantize_row<Slots, Tile>(p, row, out, place, reach, scratch.fold[Slots::kFolds - 1]);
  if ((bits_of<Slots, Tile>(p.bits_again) & kStoreStatistics) != 0 && place.leads_row() &&
      reach.live)
    store_statistics(p, out, row.mean, row.rstd);
}

// A kernel is named by an architecture's number and the two words of a Variant. With types the
// names would be several times as long.
template <int kArch, uint64_t kOrder, uint64_t kPolicies>
__global__ void __launch_bounds__(RowTileOf<Slots<kOrder, kPolicies>>::kBlockThreads,
                                  Slots<kOrder, kPolicies>::kV.blocks_per_sm)
    norm_kernel(const __grid_constant__ NormCallParams p) {
  using Slots = cuda::Slots<kOrder, kPolicies>;
  using Tile = RowTileOf<Slots>;
  if constexpr (!kHasBodies) {
  } else if constexpr (Tile::kStreams) {
    normalize_streaming<Slots, Tile>(p);
  } else {
    normalize_in_registers<Slots, Tile>(p, blockIdx.x);
  }
}

// A grid of one call or two. GridForm::kHeads divides neither rows by heads nor blocks between
// calls.
template <int kArch, uint64_t kOrder, uint64_t kPolicies, GridForm kForm>
__global__ void __launch_bounds__(RowTileOf<Slots<kOrder, kPolicies>>::kBlockThreads,
                                  Slots<kOrder, kPolicies>::kV.pair_blocks_per_sm)
    norm_pair_kernel(const __grid_constant__ NormPairParams pair) {
  using Slots = cuda::Slots<kOrder, kPolicies>;
  using Tile = RowTileOf<Slots>;
  // Both bodies read parameters at constant addresses.
  if constexpr (kHasBodies) {
    ptx::in_register(threadIdx.x);  // loaded before the branch
    PairBlock mine;
    if constexpr (kForm == GridForm::kHeads) {
      const uint32_t first_blocks = pair.call[0].first_blocks;
      mine.second = blockIdx.x >= first_blocks;
      mine.block = mine.second ? blockIdx.x - first_blocks : blockIdx.x;
    } else {
      mine = pair_block(blockIdx.x, pair.call[0].second_share);
    }
    // The compiler places the last of these first. Most blocks run that one.
    if (mine.second) {
      normalize_in_registers<Slots, Tile, kForm>(pair.call[1], mine.block);
    } else {
      normalize_in_registers<Slots, Tile, kForm>(pair.call[0], mine.block);
    }
  }
}

}  // namespace fastnorm::cuda
