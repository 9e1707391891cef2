// Shared memory of the MLA decode kernel, and what a warpgroup does with a 64 x 64 tile of scores.
//
// A 64-row operand (queries, a tile of the cache) is nine sub-tiles of 64 rows x 64 columns, 8 KB
// each, with the 128-byte swizzle: 0..7 latent, 8 RoPE. A thread of a warpgroup owns two rows of an
// accumulator, `row` and `row + 8`: elements whose index has bit 1 set belong to the second.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/cluster.cuh"
#include "cuda/common/ptx/math.cuh"
#include "cuda/common/ptx/tma.cuh"
#include "cuda/common/ptx/warpgroup.cuh"
#include "cuda/mla_decode/params.h"
#include "cuda/wgmma.h"

namespace fastnorm::cuda::mla {

inline constexpr int kThreads = 384;    // warpgroups: two of consumers, one of producers
inline constexpr int kConsumers = 256;  // threads
inline constexpr int kGroup = 128;      // threads of a warpgroup

inline constexpr int kSubTiles = 9, kRopeSubTile = 8;
inline constexpr uint32_t kSubBytes = 64 * 64 * 2, kTileBytes = kSubTiles * kSubBytes;

// Offsets in shared memory. P of the odd tile lies on the RoPE sub-tile of Q, which both consumers
// hold in registers by then.
inline constexpr uint32_t kQ = 0, kEven = kTileBytes, kOdd = 2 * kTileBytes;
inline constexpr uint32_t kEvenP = 3 * kTileBytes, kOddP = kQ + kRopeSubTile * kSubBytes;
inline constexpr uint32_t kMaximum = kEvenP + kSubBytes;  // [64] running maximum
inline constexpr uint32_t kEvenScale = kMaximum + 256;    // [64] old to new maximum, even tile
inline constexpr uint32_t kOddScale = kEvenScale + 256;   // [64] the same, odd tile
inline constexpr uint32_t kEvenSum = kOddScale + 256;     // [64] sums of each consumer
inline constexpr uint32_t kOddSum = kEvenSum + 256;
inline constexpr uint32_t kEvenGrew = kOddSum + 256;  // [4 warps] whether a maximum grew
inline constexpr uint32_t kOddGrew = kEvenGrew + 16;
inline constexpr uint32_t kTaken = kOddGrew + 16;  // [2 consumers] who began before, of a pair
inline constexpr uint32_t kProfile = kTaken + 8;   // [3 warpgroups] of 16 bytes
inline constexpr uint32_t kBarriers = kProfile + 48;

// mbarriers. Full: data has landed. Free: its readers are done; one arrival of each warp.
inline constexpr uint32_t kFullQ = kBarriers;
inline constexpr uint32_t kFullEven = kFullQ + 8;                // [9 sub-tiles]
inline constexpr uint32_t kFullOdd = kFullEven + 8 * kSubTiles;  // [9 sub-tiles]
inline constexpr uint32_t kFreeEvenLeft = kFullOdd + 8 * kSubTiles;
inline constexpr uint32_t kFreeEvenRight = kFreeEvenLeft + 8;
inline constexpr uint32_t kFreeOddLeft = kFreeEvenRight + 8;
inline constexpr uint32_t kFreeOddRight = kFreeOddLeft + 8;
inline constexpr uint32_t kFreeQ = kFreeOddRight + 8;
inline constexpr uint32_t kFreeStage = kFreeQ + 8;  // the odd tile, which stages outputs
inline constexpr uint32_t kSharedBytes = 232448;    // all that a block may have
static_assert(kFreeStage + 8 <= kSharedBytes);

// Named barriers of both consumers, and of one each.
enum NamedBarrier : int {
  kEvenScaled = 1,  // the even tile's maximum and scales are written
  kOddScaled,
  kEvenStored,  // P of the even tile is in shared memory
  kOddStored,   // P of the odd tile too, and the even tile's right half is being multiplied
  kOneGroup,    // [2 consumers]
  kBothGroups = kOneGroup + 2,
};

// Maximum of a row before its first score. A masked score lies below it by more than any
// difference of two scores, so that it counts for nothing.
inline constexpr float kFirstMaximum = -1e30f, kMasked = -1e33f;
// A running maximum stays until a score exceeds it by 2^8: sums and outputs are that much larger
// at most, and no output has to be rescaled.
inline constexpr float kKeptGrowth = 8.0f;

// A thread's place.
struct Place {
  uint32_t shared;   // address of shared memory
  int group;         // warpgroup
  int thread, warp;  // of the warpgroup
  int lane;
  int row;  // first of its two rows of an accumulator
  __device__ __forceinline__ uint32_t row_word(uint32_t vector) const {
    return shared + vector + static_cast<uint32_t>(row) * 4;
  }
  __device__ __forceinline__ uint32_t warp_word(uint32_t vector) const {
    return shared + vector + static_cast<uint32_t>(warp) * 4;
  }
};

// Running maximum and sum of a thread's two rows.
struct RowState {
  float max0, max1;
  float sum0, sum1;
};

// Byte of a 16-byte chunk inside a sub-tile.
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t chunk) {
  return row * 128 + ((chunk ^ (row & 7)) * 16);
}

template <Dtype kDtype>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  return kDtype == Dtype::kBF16 ? ptx::cvt_bf16x2(low, high) : ptx::cvt_f16x2(low, high);
}

// A packed pair times a factor, rounded again.
template <Dtype kDtype>
__device__ __forceinline__ uint32_t scaled(uint32_t pair, float factor) {
  if constexpr (kDtype == Dtype::kBF16) {
    return pack<kDtype>(__uint_as_float(pair << 16) * factor,
                        __uint_as_float(pair & 0xffff0000u) * factor);
  } else {
    return pack<kDtype>(ptx::cvt_from_f16(pair & 0xffff) * factor,
                        ptx::cvt_from_f16(pair >> 16) * factor);
  }
}

// ---- wgmma

// K-major 64 x 64 sub-tile: queries, keys, P.
__device__ __forceinline__ uint64_t key_matrix(uint32_t address) {
  return ptx::swizzled_matrix(address, 16, 1024);
}
// Values: the next 64 columns are a sub-tile further, the next 8 tokens 1024 bytes.
__device__ __forceinline__ uint64_t value_matrix(uint32_t address) {
  return ptx::swizzled_matrix(address, kSubBytes, 1024);
}

// scores (+)= Q K^T of sub-tiles [kFrom, kTo); waits for each. `first` replaces the scores.
template <Dtype kDtype, int kFrom, int kTo>
__device__ __forceinline__ void add_scores(float (&scores)[32], const uint32_t (&q_rope)[16],
                                           uint32_t q, uint32_t tile, uint32_t full, int phase,
                                           bool first) {
#pragma unroll
  for (int c = kFrom; c < kTo; ++c) {
    ptx::mbarrier_wait(full + c * 8, phase);
    ptx::wgmma_fence();  // without one behind each spin ptxas serialises the group
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int accumulate = !(first && c == kFrom && step == 0);
      const uint64_t keys = key_matrix(tile + c * kSubBytes + step * 32);
      if (c == kRopeSubTile) {
        ptx::wgmma_n64_rs<kDtype>(scores, q_rope + 4 * step, keys, accumulate);
      } else {
        ptx::wgmma_n64_ss<kDtype>(scores, key_matrix(q + c * kSubBytes + step * 32), keys,
                                  accumulate);
      }
    }
  }
}

// o += P V of 64 tokens and 256 columns; `values` is the first of four sub-tiles.
template <Dtype kDtype>
__device__ __forceinline__ void add_own_values(float (&o)[128], const uint32_t (&prob)[16],
                                               uint32_t values) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    ptx::wgmma_n256_rs_t<kDtype>(o, prob + 4 * step, value_matrix(values + step * 2048), 1);
  }
}
template <Dtype kDtype>
__device__ __forceinline__ void add_values(float (&o)[128], uint32_t prob, uint32_t values) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    ptx::wgmma_n256_ss_t<kDtype>(o, key_matrix(prob + step * 32),
                                 value_matrix(values + step * 2048), 1);
  }
}

// ---- scores

// Scores of tokens from a row's limit on become kMasked. `token` is the tile's first.
__device__ __forceinline__ void mask_scores(float (&scores)[32], int token, int lane, int limit0,
                                            int limit1) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int column = token + 8 * (i / 4) + 2 * (lane & 3) + (i & 1);
    if (column >= ((i & 2) != 0 ? limit1 : limit0)) scores[i] = kMasked;
  }
}

// The greatest of the thread's own scores of each row.
__device__ __forceinline__ void own_maximum(const float (&scores)[32], float& max0, float& max1) {
  float a = fmaxf(scores[0], scores[1]), b = fmaxf(scores[2], scores[3]);
  float c = fmaxf(scores[4], scores[5]), d = fmaxf(scores[6], scores[7]);
#pragma unroll
  for (int i = 8; i < 32; i += 8) {
    a = fmaxf(a, fmaxf(scores[i], scores[i + 1]));
    b = fmaxf(b, fmaxf(scores[i + 2], scores[i + 3]));
    c = fmaxf(c, fmaxf(scores[i + 4], scores[i + 5]));
    d = fmaxf(d, fmaxf(scores[i + 6], scores[i + 7]));
  }
  max0 = fmaxf(a, c);
  max1 = fmaxf(b, d);
}

// Whether a score of the warp outgrows its row's maximum. One vote and no shuffle: the common case.
__device__ __forceinline__ bool outgrows(float max0, float max1, const RowState& state,
                                         float scale) {
  return __any_sync(
      ~0u, (max0 - state.max0) * scale > kKeptGrowth || (max1 - state.max1) * scale > kKeptGrowth);
}

// The greatest of four lanes, which share a row.
__device__ __forceinline__ float row_maximum(float own) {
  own = fmaxf(own, __shfl_xor_sync(~0u, own, 1));
  return fmaxf(own, __shfl_xor_sync(~0u, own, 2));
}

// Takes over new maxima where rows outgrew theirs, and gives the factors from old to new.
__device__ __forceinline__ void grow(RowState& state, float own0, float own1, float scale,
                                     float& factor0, float& factor1) {
  const float max0 = row_maximum(own0), max1 = row_maximum(own1);
  const float new0 = (max0 - state.max0) * scale > kKeptGrowth ? max0 : state.max0;
  const float new1 = (max1 - state.max1) * scale > kKeptGrowth ? max1 : state.max1;
  factor0 = ptx::exp2_approx((state.max0 - new0) * scale);
  factor1 = ptx::exp2_approx((state.max1 - new1) * scale);
  state.max0 = new0;
  state.max1 = new1;
}

__device__ __forceinline__ void store_row_pair(const Place& place, uint32_t vector, float a,
                                               float b) {
  if ((place.lane & 3) != 0) return;
  ptx::store_shared_f32(place.row_word(vector), a);
  ptx::store_shared_f32(place.row_word(vector) + 32, b);
}
__device__ __forceinline__ void load_row_pair(const Place& place, uint32_t vector, float& a,
                                              float& b) {
  a = ptx::load_shared_f32(place.row_word(vector));
  b = ptx::load_shared_f32(place.row_word(vector) + 32);
}
__device__ __forceinline__ void store_grew(const Place& place, uint32_t vector, bool grew) {
  if (place.lane == 0) ptx::store_shared_u32(place.warp_word(vector), grew);
}
__device__ __forceinline__ bool load_grew(const Place& place, uint32_t vector) {
  return ptx::load_shared_u32(place.warp_word(vector)) != 0;
}

// Sums and outputs of the rows times factors.
__device__ __forceinline__ void rescale(float (&o)[128], RowState& state, float factor0,
                                        float factor1) {
  state.sum0 *= factor0;
  state.sum1 *= factor1;
#pragma unroll
  for (int i = 0; i < 128; ++i) o[i] *= (i & 2) != 0 ? factor1 : factor0;
}

// prob = exp2((scores - maximum) * scale), packed as the A operand of the product with V. Sums take
// the unrounded ones.
template <Dtype kDtype>
__device__ __forceinline__ void exponentials(const float (&scores)[32], uint32_t (&prob)[16],
                                             RowState& state, float scale) {
  const float shift0 = state.max0 * scale, shift1 = state.max1 * scale;
  float sum0a = 0, sum0b = 0, sum1a = 0, sum1b = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float a = ptx::exp2_approx(__fmaf_rn(scores[4 * k], scale, -shift0));
    const float b = ptx::exp2_approx(__fmaf_rn(scores[4 * k + 1], scale, -shift0));
    const float c = ptx::exp2_approx(__fmaf_rn(scores[4 * k + 2], scale, -shift1));
    const float d = ptx::exp2_approx(__fmaf_rn(scores[4 * k + 3], scale, -shift1));
    sum0a += a, sum0b += b, sum1a += c, sum1b += d;
    prob[2 * k] = pack<kDtype>(a, b);
    prob[2 * k + 1] = pack<kDtype>(c, d);
  }
  state.sum0 += sum0a + sum0b;
  state.sum1 += sum1a + sum1b;
}

// P into a sub-tile, as the other consumer's A operand.
__device__ __forceinline__ void store_prob(const Place& place, uint32_t sub_tile,
                                           const uint32_t (&prob)[16]) {
  const uint32_t row = static_cast<uint32_t>(place.warp * 16 + (place.lane & 15));
  const uint32_t chunk = static_cast<uint32_t>(place.lane >> 4);
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) {
    ptx::stmatrix_x4(sub_tile + swizzled(row, 2 * k + chunk), prob[4 * k], prob[4 * k + 1],
                     prob[4 * k + 2], prob[4 * k + 3]);
  }
}

// The RoPE sub-tile of Q as A operands of four steps.
__device__ __forceinline__ void load_q_rope(const Place& place, uint32_t (&q_rope)[16]) {
  const uint32_t row = static_cast<uint32_t>(place.warp * 16 + (place.lane & 15));
  const uint32_t chunk = static_cast<uint32_t>(place.lane >> 4);
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) {
    ptx::ldmatrix_x4(q_rope + 4 * k,
                     place.shared + kQ + kRopeSubTile * kSubBytes + swizzled(row, 2 * k + chunk));
  }
}

// Zeroes rows from `valid` on of four sub-tiles: they may hold NaN, which P = 0 does not undo. Keys
// are the same bytes, so their product must have ended.
__device__ __forceinline__ void zero_rows(const Place& place, uint32_t sub_tiles, int valid) {
  for (int i = valid * 8 + place.thread; i < 64 * 8; i += kGroup) {
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) {
      ptx::store_shared_zero_v4(sub_tiles + c * kSubBytes + static_cast<uint32_t>(i) * 16);
    }
  }
  ptx::fence_async_proxy();
  ptx::named_barrier_sync(kOneGroup + place.group, kGroup);
}

// Tells the producer that this warp is done with what `barrier` stands for.
__device__ __forceinline__ void release(const Place& place, uint32_t barrier) {
  if (place.lane == 0) ptx::mbarrier_arrive(place.shared + barrier);
}

}  // namespace fastnorm::cuda::mla
