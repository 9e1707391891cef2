// The two warpgroups that compute over gathered rows. The first has the scores, the softmax and
// columns 0..255 of O, the second has columns 256..511:
//
//   first:  scores of a tile, its softmax, P to shared memory; P times the left half of the tile
//   second: P times the right half
//
// So the first needs all registers of a softmax and the second none of them, and the warpgroup that
// converts rows can have what is left: a tile on its way. While the first has the scores of a tile,
// the second has the values of the tile before.
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
  __device__ __forceinline__ uint32_t full() const { return kFull + buffer * 8; }
  __device__ __forceinline__ uint32_t free() const { return kFree + buffer * 8; }
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

template <Dtype kDtype, int kSubTilesOfRow>
__device__ __forceinline__ void all_scores(float (&scores)[32], uint32_t q, uint32_t tile) {
#pragma unroll
  for (int c = 0; c < kSubTilesOfRow; ++c) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::wgmma_n64_ss<kDtype>(scores, key_matrix(q + c * kSubBytes + step * 32),
                                key_matrix(tile + c * kSubBytes + step * 32), c != 0 || step != 0);
    }
  }
}

// A half of a consumer's outputs: 128 columns, two sub-tiles of values. With four warpgroups no
// instruction may have more accumulators.
__device__ __forceinline__ float (&columns_of(float (&o)[128], int half))[64] {
  return reinterpret_cast<float(&)[64]>(o[64 * half]);
}
template <Dtype kDtype>
__device__ __forceinline__ void add_own_halves(float (&o)[128], const uint32_t (&prob)[16],
                                               uint32_t values) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::wgmma_n128_rs_t<kDtype>(columns_of(o, half), prob + 4 * step,
                                   value_matrix(values + half * 2 * kSubBytes + step * 2048), 1);
    }
  }
}
template <Dtype kDtype>
__device__ __forceinline__ void add_halves(float (&o)[128], uint32_t prob, uint32_t values) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::wgmma_n128_ss_t<kDtype>(columns_of(o, half), key_matrix(prob + step * 32),
                                   value_matrix(values + half * 2 * kSubBytes + step * 2048), 1);
    }
  }
}

template <Dtype kDtype, MlaCacheFormat kFormat>
__device__ __forceinline__ void first_half(const TileLoop& loop, float (&o)[128], RowState& state,
                                           TileCount& at, bool& stored) {
  const Place& place = loop.place;
  const float scale = loop.p.scale_log2;
  for (int tile = loop.item.first_tile;;) {
    const uint32_t memory = at.memory(place);
    float scores[32];
    uint32_t prob[16];
    ptx::mbarrier_wait(place.shared + at.full(), at.phase);
    ptx::wgmma_fence();
    all_scores<kDtype, nope_sub_tiles(kFormat) + 1>(scores, place.shared + kQ, memory);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(scores);

    mask_rows(place, at.buffer, scores);
    loop.mask(scores, tile);
    float own0, own1;
    own_maximum(scores, own0, own1);
    const bool grew = outgrows(own0, own1, state, scale);
    if (stored) ptx::named_barrier_sync(kReadP, kConsumers);
    stored = true;
    if (grew) {
      float factor0, factor1;
      grow(state, own0, own1, scale, factor0, factor1);
      store_row_pair(place, kRowScale, factor0, factor1);
      rescale(o, state, factor0, factor1);
    }
    store_grew(place, kGrew, grew);
    exponentials<kDtype>(scores, prob, state, scale);
    store_prob(place, place.shared + kEvenP, prob);
    ptx::fence_async_proxy();
    ptx::named_barrier_arrive(kStoredP, kConsumers);

    ptx::pin(o);
    ptx::pin(prob);
    ptx::wgmma_fence();
    add_own_halves<kDtype>(o, prob, memory);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    ptx::pin(prob);
    __syncwarp();  // all lanes have read which rows count
    if (++tile >= loop.item.end_tile) break;
    release(place, at.free());
    at.step();
  }
}

template <Dtype kDtype>
__device__ __forceinline__ void second_half(const TileLoop& loop, float (&o)[128], TileCount& at) {
  const Place& place = loop.place;
  for (int tile = loop.item.first_tile;;) {
    const uint32_t memory = at.memory(place);
    ptx::mbarrier_wait(place.shared + at.full(), at.phase);
    ptx::named_barrier_sync(kStoredP, kConsumers);
    if (load_grew(place, kGrew)) {
      float factor0, factor1;
      load_row_pair(place, kRowScale, factor0, factor1);
#pragma unroll
      for (int i = 0; i < 128; ++i) o[i] *= (i & 2) != 0 ? factor1 : factor0;
    }
    ptx::pin(o);
    ptx::wgmma_fence();
    add_halves<kDtype>(o, place.shared + kEvenP, memory + 4 * kSubBytes);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    ptx::named_barrier_arrive(kReadP, kConsumers);
    if (++tile >= loop.item.end_tile) break;
    release(place, at.free());
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
  if (place.group == 0) {
    if (place.thread == 0) ptx::mbarrier_arrive(place.shared + kFreeQ);
  } else {
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
    release(place, at.free());
    at.step();
  }
  if (kGroupIndex == 0 && stored) ptx::named_barrier_sync(kReadP, kConsumers);
}

}  // namespace fastnorm::cuda::mla
