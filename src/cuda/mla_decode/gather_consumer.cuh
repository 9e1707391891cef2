// The two warpgroups that compute over gathered rows. The first has the scores, the softmax and
// columns 0..255 of O, the second has columns 256..511:
//
//   first:  P times the left half of a tile; scores of the next tile; their softmax, P to shared
//           memory
//   second: P times the right half
//
// The second multiplies while the first has its softmax: then nobody else wants the tensor cores.
// The first needs all registers of a softmax and the second none of them, and the warpgroups that
// convert rows can have what is left: a tile on its way.
#pragma once

#include "cuda/mla_decode/consumer.cuh"
#include "cuda/mla_decode/gather_tile.cuh"

namespace fastnorm::cuda::mla {

// The tile that a consumer is at. Both count all tiles of the block.
struct TileCount {
  uint32_t buffer = 0, phase = 0;
  __device__ __forceinline__ void step() {
    buffer ^= 1;
    if (buffer == 0) phase ^= 1;
  }
  __device__ __forceinline__ uint32_t memory(const Place& place) const {
    return place.shared + kEven + buffer * kTileBytes;
  }
  __device__ __forceinline__ uint32_t full(uint32_t half) const { return full_half(buffer, half); }
  __device__ __forceinline__ uint32_t free(uint32_t half) const { return free_half(buffer, half); }
};

// Scores of rows that do not count become kMasked.
__device__ __forceinline__ void mask_rows(const Place& place, uint32_t buffer,
                                          float (&scores)[32]) {
  const uint32_t low = ptx::load_shared_u32(place.shared + kCounts + buffer * 8);
  const uint32_t high = ptx::load_shared_u32(place.shared + kCounts + buffer * 8 + 4);
  if ((low & high) == ~0u) return;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int row = 8 * (i / 4 % 4) + 2 * (place.lane & 3) + (i & 1);
    if (((i < 16 ? low : high) >> row & 1) == 0) scores[i] = kMasked;
  }
}

template <Dtype kDtype>
__device__ __forceinline__ void sub_tile_scores(float (&scores)[32], uint64_t q, uint64_t tile,
                                                uint32_t c, bool first) {
#pragma unroll
  for (uint32_t step = 0; step < 4; ++step) {
    ptx::wgmma_n64_ss<kDtype>(scores, ptx::matrix_behind(q, c * kSubBytes + step * 32),
                              ptx::matrix_behind(tile, c * kSubBytes + step * 32),
                              !first || step != 0);
  }
}
// Scores of a half of the columns, the left one with those of RoPE behind all others.
template <Dtype kDtype, MlaCacheFormat kFormat, uint32_t kHalf>
__device__ __forceinline__ void half_scores(float (&scores)[32], const Place& place,
                                            const TileCount& at) {
  const uint64_t q = key_matrix(place.shared + kQ), tile = key_matrix(at.memory(place));
  ptx::mbarrier_wait(place.shared + at.full(kHalf), at.phase);
  ptx::wgmma_fence();
#pragma unroll
  for (uint32_t c = 4 * kHalf; c < 4 * kHalf + 4; ++c) {
    sub_tile_scores<kDtype>(scores, q, tile, c, c == 0);
  }
  if constexpr (kHalf == 0 && nope_sub_tiles(kFormat) == kRopeSubTile) {
    sub_tile_scores<kDtype>(scores, q, tile, kRopeSubTile, false);
  }
  ptx::wgmma_commit();
}

// A half of a consumer's outputs: 128 columns, two sub-tiles of values. With four warpgroups no
// instruction may have more accumulators.
__device__ __forceinline__ float (&columns_of(float (&o)[128], int half))[64] {
  return reinterpret_cast<float(&)[64]>(o[64 * half]);
}
// o += P V of 64 tokens. multiply(o, step, values) takes the columns of P that a step needs.
template <class Multiply>
__device__ __forceinline__ void add_halves(float (&o)[128], uint32_t values, Multiply multiply) {
  const uint64_t matrix = value_matrix(values);
#pragma unroll
  for (uint32_t step = 0; step < 4; ++step) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      multiply(columns_of(o, static_cast<int>(half)), step,
               ptx::matrix_behind(matrix, half * 2 * kSubBytes + step * 2048));
    }
  }
}

template <Dtype kDtype, MlaCacheFormat kFormat>
__device__ __forceinline__ void first_half(const TileLoop& loop, float (&o)[128], RowState& state,
                                           TileCount& at, bool& stored) {
  const Place& place = loop.place;
  const float scale = loop.p.scale_log2;
  for (int tile = loop.item.first_tile;;) {
    const bool is_last = tile + 1 >= loop.item.end_tile;
    float scores[32];
    uint32_t prob[16];
    half_scores<kDtype, kFormat, 0>(scores, place, at);
    half_scores<kDtype, kFormat, 1>(scores, place, at);
    ptx::wgmma_wait<0>();
    ptx::pin(scores);
    // P of the tile before: this consumer does not need the tensor cores for a while.
    if (tile != loop.item.first_tile) ptx::named_barrier_arrive(kStoredP, kConsumers);
    if (is_last) release(place, kFreeQ);

    mask_rows(place, at.buffer, scores);
    loop.mask(scores, tile);
    float own0, own1, factor0 = 1, factor1 = 1;
    own_maximum(scores, own0, own1);
    const bool grew = outgrows(own0, own1, state, scale);
    if (grew) {
      grow(state, own0, own1, scale, factor0, factor1);
      rescale(o, state, factor0, factor1);
    }
    exponentials<kDtype>(scores, prob, state, scale);
    ptx::pin(o);
    ptx::pin(prob);
    ptx::wgmma_fence();
    add_halves(o, at.memory(place), [&](float(&part)[64], uint32_t step, uint64_t values) {
      ptx::wgmma_n128_rs_t<kDtype>(part, prob + 4 * step, values, 1);
    });
    ptx::wgmma_commit();
    if (stored) ptx::named_barrier_sync(kReadP, kConsumers);
    stored = true;
    if (grew) store_row_pair(place, kRowScale, factor0, factor1);
    store_grew(place, kGrew, grew);
    store_prob(place, place.shared + kEvenP, prob);
    ptx::fence_async_proxy();
    if (is_last) ptx::named_barrier_arrive(kStoredP, kConsumers);
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    ptx::pin(prob);
    if (is_last) break;
    release(place, at.free(0));
    at.step();
    ++tile;
  }
}

template <Dtype kDtype>
__device__ __forceinline__ void second_half(const TileLoop& loop, float (&o)[128], TileCount& at) {
  const Place& place = loop.place;
  for (int tile = loop.item.first_tile;;) {
    ptx::mbarrier_wait(place.shared + at.full(1), at.phase);
    ptx::named_barrier_sync(kStoredP, kConsumers);
    const bool grew = load_grew(place, kGrew);
    float factor0, factor1;
    if (grew) load_row_pair(place, kRowScale, factor0, factor1);
    if (grew) {
#pragma unroll
      for (int i = 0; i < 128; ++i) o[i] *= (i & 2) != 0 ? factor1 : factor0;
    }
    ptx::pin(o);
    ptx::wgmma_fence();
    const uint64_t prob = key_matrix(place.shared + kEvenP);
    add_halves(o, at.memory(place) + 4 * kSubBytes,
               [&](float(&part)[64], uint32_t step, uint64_t values) {
                 ptx::wgmma_n128_ss_t<kDtype>(part, ptx::matrix_behind(prob, step * 32), values, 1);
               });
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    ptx::named_barrier_arrive(kReadP, kConsumers);
    if (++tile >= loop.item.end_tile) break;
    release(place, at.free(1));
    at.step();
  }
}

// The sums of a row's four lanes. The second consumer gets them and the maxima from the first.
__device__ __forceinline__ void share_sums(const Place& place, uint32_t parity, RowState& state) {
  if (place.group == 0) {
    state.sum0 += __shfl_xor_sync(~0u, state.sum0, 1);
    state.sum0 += __shfl_xor_sync(~0u, state.sum0, 2);
    state.sum1 += __shfl_xor_sync(~0u, state.sum1, 1);
    state.sum1 += __shfl_xor_sync(~0u, state.sum1, 2);
    store_row_pair(place, kRowSum + parity * 256, state.sum0, state.sum1);
    store_row_pair(place, kRowMaximum + parity * 256, state.max0, state.max1);
  }
  ptx::named_barrier_sync(kBothGroups, kConsumers);
  if (place.group == 1) {
    load_row_pair(place, kRowSum + parity * 256, state.sum0, state.sum1);
    load_row_pair(place, kRowMaximum + parity * 256, state.max0, state.max1);
  }
}

template <Dtype kDtype, MlaCacheFormat kFormat, int kGroupIndex>
__device__ __forceinline__ void consume_gathered(const MlaDecodeParams& p,
                                                 const MlaDecodeMaps& maps, const Place& place) {
  Walk walk(p);
  Item item;
  TileCount at;
  uint32_t q_phase = 0;
  bool stored = false;  // P of a tile before this one, which the second consumer may be reading
  while (walk.next(p, item)) {
    if (!item.has_rows) continue;
    begin_pair(p, place, item.piece);
    if (item.first_tile >= item.end_tile) {
      write_empty(p, place, walk.item_request());
      continue;
    }
    float o[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0;
    RowState state = {kFirstMaximum, kFirstMaximum, 0, 0};
    const TileLoop loop = {p, place, item};
    if constexpr (kGroupIndex == 0) {
      ptx::mbarrier_wait(place.shared + kFullQ, q_phase);
      first_half<kDtype, kFormat>(loop, o, state, at, stored);
    } else {
      second_half<kDtype>(loop, o, at);
    }
    share_sums(place, q_phase, state);
    q_phase ^= 1;
    // Outputs are staged in the item's last tile, each consumer's in the half that it alone reads.
    write_outputs<kDtype, 2>(p, maps, place, walk.item_request(), item.piece, at.memory(place), o,
                             state);
    __syncwarp();  // lane 0 of a storing warp has waited until its stage was read
    release(place, at.free(kGroupIndex));
    at.step();
  }
  if (kGroupIndex == 0 && stored) ptx::named_barrier_sync(kReadP, kConsumers);
}

}  // namespace fastnorm::cuda::mla
