// The two warpgroups that compute, in a seesaw over pairs of tiles: one does softmax while the
// other has the tensor cores.
//
//   even: scores of the even tile, its softmax; columns 0..255 of O
//   odd:  scores of the odd tile, its softmax;  columns 256..511 of O
//
// Each multiplies its own P from registers and the other's from shared memory. The running maximum
// is shared: the even tile moves it first, then the odd one. P of the even tile in shared memory is
// relative to the maximum after the odd one.
#pragma once

#include "cuda/mla_decode/maps.h"
#include "cuda/mla_decode/pair.cuh"
#include "cuda/mla_decode/record.cuh"
#include "cuda/mla_decode/tile.cuh"
#include "cuda/mla_decode/work.cuh"

namespace fastnorm::cuda::mla {

// What both consumers need for the tiles of an item.
struct TileLoop {
  const MlaDecodeParams& p;
  const Place& place;
  const Item& item;

  // Rows that are left of the request's last tile, and its number; -1 where the tile is full.
  __device__ __forceinline__ int tail_rows() const { return item.length % kMlaTileTokens; }
  __device__ __forceinline__ bool is_tail(int tile) const {
    return (tile + 1) * kMlaTileTokens > item.length;
  }

  __device__ __forceinline__ void mask(float (&scores)[32], int tile) const {
    if ((tile + 1) * kMlaTileTokens <= min(item.first_limit, item.length)) return;
    const int row = static_cast<int>(blockIdx.x) * kMlaTileRows + place.row;
    mask_scores(scores, tile * kMlaTileTokens, place.lane, limit_of(p, item, row),
                limit_of(p, item, row + 8));
  }
};

// Waits for the other consumer.
template <bool kRecords>
__device__ __forceinline__ void wait_for(int barrier, const Recorder<kRecords>& record,
                                         fastnorm_profile_id what, int tile) {
  record.begin(what, tile);
  ptx::named_barrier_sync(barrier, kConsumers);
  record.end(what, tile);
}

// The probabilities of an even tile, whose maximum comes before the odd one's.
template <Dtype kDtype>
__device__ __forceinline__ void even_softmax(const TileLoop& loop, float (&scores)[32],
                                             uint32_t (&prob)[16], float (&o)[128], RowState& state,
                                             int tile) {
  const Place& place = loop.place;
  const float scale = loop.p.scale_log2;
  loop.mask(scores, tile);
  float own0, own1;
  own_maximum(scores, own0, own1);
  const bool grew = outgrows(own0, own1, state, scale);
  if (grew) {
    float factor0, factor1;
    grow(state, own0, own1, scale, factor0, factor1);
    store_row_pair(place, kMaximum, state.max0, state.max1);
    store_row_pair(place, kEvenScale, factor0, factor1);
    rescale(o, state, factor0, factor1);
  }
  store_grew(place, kEvenGrew, grew);
  ptx::named_barrier_arrive(kEvenScaled, kConsumers);
  exponentials<kDtype>(scores, prob, state, scale);
}

// Makes what is relative to the even tile's maximum relative to the odd one's.
template <Dtype kDtype>
__device__ __forceinline__ void follow_odd_maximum(const Place& place, uint32_t (&prob)[16],
                                                   float (&o)[128], RowState& state) {
  float factor0, factor1;
  load_row_pair(place, kOddScale, factor0, factor1);
  load_row_pair(place, kMaximum, state.max0, state.max1);
#pragma unroll
  for (int i = 0; i < 16; ++i) prob[i] = scaled<kDtype>(prob[i], (i & 1) ? factor1 : factor0);
  store_prob(place, place.shared + kEvenP, prob);
  rescale(o, state, factor0, factor1);
}

template <Dtype kDtype, bool kRecords>
__device__ __forceinline__ void even_tiles(const TileLoop& loop, const Recorder<kRecords>& record,
                                           float (&o)[128], RowState& state, uint32_t& phase) {
  const Place& place = loop.place;
  const int end = loop.item.end_tile;
  const uint32_t even = place.shared + kEven, odd = place.shared + kOdd;
  const uint32_t q = place.shared + kQ, full = place.shared + kFullEven;
  float scores[32];
  uint32_t prob[16], q_rope[16];
  load_q_rope(place, q_rope);
  int tile = loop.item.first_tile;
  record.begin(FASTNORM_PROFILE_QK, tile);
  if (end != loop.p.never) {  // always; ptxas must not join this with the loop
    add_scores<kDtype, 0, 9>(scores, q_rope, q, even, full, phase, true);
    ptx::wgmma_commit();
  }
  ptx::wgmma_wait<0>();
  ptx::pin(scores);
  record.end(FASTNORM_PROFILE_QK, tile);
  for (;;) {
    phase ^= 1;
    const bool has_odd = tile + 1 < end, has_next = tile + 2 < end;

    record.begin(FASTNORM_PROFILE_SOFTMAX, tile);
    even_softmax<kDtype>(loop, scores, prob, o, state, tile);
    record.end(FASTNORM_PROFILE_SOFTMAX, tile);

    if (loop.is_tail(tile)) zero_rows(place, even, loop.tail_rows());
    record.begin(FASTNORM_PROFILE_PV, tile);
    ptx::pin(o);
    ptx::pin(prob);
    ptx::wgmma_fence();
    add_own_values<kDtype>(o, prob, even);
    ptx::wgmma_commit();
    store_prob(place, place.shared + kEvenP, prob);
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    ptx::pin(prob);
    record.end(FASTNORM_PROFILE_PV, tile);
    release(place, kFreeEvenLeft);
    if (!has_odd) {
      ptx::fence_async_proxy();
      ptx::named_barrier_arrive(kEvenStored, kConsumers);
      break;
    }

    wait_for(kOddScaled, record, FASTNORM_PROFILE_WAIT_SCALE_1, tile);
    if (load_grew(place, kOddGrew)) follow_odd_maximum<kDtype>(place, prob, o, state);
    ptx::fence_async_proxy();
    ptx::named_barrier_arrive(kEvenStored, kConsumers);
    wait_for(kOddStored, record, FASTNORM_PROFILE_WAIT_P_1, tile + 1);

    if (loop.is_tail(tile + 1)) zero_rows(place, odd, loop.tail_rows());
    record.begin(FASTNORM_PROFILE_PV, tile + 1);
    ptx::pin(o);
    ptx::wgmma_fence();
    add_values<kDtype>(o, place.shared + kOddP, odd);
    ptx::wgmma_commit();
    if (!has_next) {
      ptx::wgmma_wait<0>();
      ptx::pin(o);
      record.end(FASTNORM_PROFILE_PV, tile + 1);
      release(place, kFreeOddLeft);
      break;
    }
    // The odd tile's left half is free earlier if the product ends before the wait for the next
    // even tile. If that is there already, its scores come first: the tensor cores stay busy.
    const bool ready = __all_sync(~0u, ptx::mbarrier_test(full + 3 * 8, phase));
    if (!ready) {
      ptx::wgmma_wait<0>();
      release(place, kFreeOddLeft);
    }
    record.begin(FASTNORM_PROFILE_QK, tile + 2);
    add_scores<kDtype, 0, 4>(scores, q_rope, q, even, full, phase, true);
    ptx::wgmma_commit();
    if (ready) {
      ptx::wgmma_wait<1>();
      release(place, kFreeOddLeft);
    }
    record.end(FASTNORM_PROFILE_PV, tile + 1);
    add_scores<kDtype, 4, 9>(scores, q_rope, q, even, full, phase, false);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    ptx::pin(scores);
    record.end(FASTNORM_PROFILE_QK, tile + 2);
    tile += 2;
  }
}

// Scores of the odd tile, in the order in which its sub-tiles arrive.
template <Dtype kDtype>
__device__ __forceinline__ void odd_scores(const Place& place, float (&scores)[32],
                                           const uint32_t (&q_rope)[16], int phase) {
  const uint32_t odd = place.shared + kOdd, q = place.shared + kQ;
  const uint32_t full = place.shared + kFullOdd;
  add_scores<kDtype, 4, 9>(scores, q_rope, q, odd, full, phase, true);
  add_scores<kDtype, 0, 4>(scores, q_rope, q, odd, full, phase, false);
  ptx::wgmma_commit();
}

inline constexpr uint32_t kRightHalf = 4 * kSubBytes;  // of a tile

// Follows an item's last tile, an even one without an odd one behind it.
template <Dtype kDtype, bool kRecords>
__device__ __forceinline__ void add_last_even(const TileLoop& loop,
                                              const Recorder<kRecords>& record, float (&o)[128],
                                              RowState& state, int tile) {
  const Place& place = loop.place;
  const uint32_t right = place.shared + kEven + kRightHalf;
  wait_for(kEvenScaled, record, FASTNORM_PROFILE_WAIT_SCALE_0, tile);
  if (load_grew(place, kEvenGrew)) {
    float factor0, factor1;
    load_row_pair(place, kMaximum, state.max0, state.max1);
    load_row_pair(place, kEvenScale, factor0, factor1);
    rescale(o, state, factor0, factor1);
  }
  if (loop.is_tail(tile)) zero_rows(place, right, loop.tail_rows());
  wait_for(kEvenStored, record, FASTNORM_PROFILE_WAIT_P_0, tile);
  record.begin(FASTNORM_PROFILE_PV, tile);
  ptx::pin(o);
  ptx::wgmma_fence();
  add_values<kDtype>(o, place.shared + kEvenP, right);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin(o);
  record.end(FASTNORM_PROFILE_PV, tile);
  release(place, kFreeEvenRight);
}

// The probabilities of the odd tile behind `tile`, whose maximum comes after the even one's.
template <Dtype kDtype, bool kRecords>
__device__ __forceinline__ void odd_softmax(const TileLoop& loop, const Recorder<kRecords>& record,
                                            float (&scores)[32], uint32_t (&prob)[16],
                                            float (&o)[128], RowState& state, int tile) {
  const Place& place = loop.place;
  const float scale = loop.p.scale_log2;
  record.begin(FASTNORM_PROFILE_SOFTMAX, tile + 1);
  loop.mask(scores, tile + 1);
  float own0, own1;
  own_maximum(scores, own0, own1);
  record.end(FASTNORM_PROFILE_SOFTMAX, tile + 1);
  wait_for(kEvenScaled, record, FASTNORM_PROFILE_WAIT_SCALE_0, tile);
  record.begin(FASTNORM_PROFILE_SOFTMAX, tile + 1);
  const bool even_grew = load_grew(place, kEvenGrew);
  float factor0 = 1, factor1 = 1;
  if (even_grew) {
    load_row_pair(place, kMaximum, state.max0, state.max1);
    load_row_pair(place, kEvenScale, factor0, factor1);
  }
  const bool grew = outgrows(own0, own1, state, scale);
  if (grew) {
    float own_factor0, own_factor1;
    grow(state, own0, own1, scale, own_factor0, own_factor1);
    factor0 *= own_factor0;
    factor1 *= own_factor1;
    __syncwarp();  // the maxima that the warp has read
    store_row_pair(place, kMaximum, state.max0, state.max1);
    store_row_pair(place, kOddScale, own_factor0, own_factor1);
  }
  store_grew(place, kOddGrew, grew);
  ptx::named_barrier_arrive(kOddScaled, kConsumers);
  if (even_grew || grew) rescale(o, state, factor0, factor1);
  exponentials<kDtype>(scores, prob, state, scale);
  record.end(FASTNORM_PROFILE_SOFTMAX, tile + 1);
}

template <Dtype kDtype, bool kRecords>
__device__ __forceinline__ void odd_tiles(const TileLoop& loop, const Recorder<kRecords>& record,
                                          float (&o)[128], RowState& state, uint32_t& phase) {
  const Place& place = loop.place;
  const int end = loop.item.end_tile;
  const uint32_t even = place.shared + kEven, odd = place.shared + kOdd;
  float scores[32];
  uint32_t prob[16], q_rope[16];
  load_q_rope(place, q_rope);
  int tile = loop.item.first_tile;
  record.begin(FASTNORM_PROFILE_QK, tile + 1);
  if (tile + 1 < end && end != loop.p.never) odd_scores<kDtype>(place, scores, q_rope, phase);
  ptx::wgmma_wait<0>();
  ptx::pin(scores);
  record.end(FASTNORM_PROFILE_QK, tile + 1);
  for (;;) {
    const bool has_odd = tile + 1 < end, has_next = tile + 2 < end, has_next_odd = tile + 3 < end;
    if (!has_odd) {  // the item's last tile is an even one
      add_last_even<kDtype>(loop, record, o, state, tile);
      break;
    }

    phase ^= 1;
    odd_softmax<kDtype>(loop, record, scores, prob, o, state, tile);

    if (loop.is_tail(tile + 1)) zero_rows(place, odd + kRightHalf, loop.tail_rows());
    record.begin(FASTNORM_PROFILE_PV, tile + 1);
    ptx::pin(o);
    ptx::pin(prob);
    ptx::wgmma_fence();
    add_own_values<kDtype>(o, prob, odd + kRightHalf);
    ptx::wgmma_commit();
    store_prob(place, place.shared + kOddP, prob);
    ptx::fence_async_proxy();
    wait_for(kEvenStored, record, FASTNORM_PROFILE_WAIT_P_0, tile);
    add_values<kDtype>(o, place.shared + kEvenP, even + kRightHalf);
    ptx::wgmma_commit();
    ptx::named_barrier_arrive(kOddStored, kConsumers);
    ptx::wgmma_wait<1>();
    release(place, kFreeOddRight);
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    ptx::pin(prob);
    record.end(FASTNORM_PROFILE_PV, tile + 1);
    release(place, kFreeEvenRight);
    if (!has_next) break;
    if (has_next_odd) {
      record.begin(FASTNORM_PROFILE_QK, tile + 3);
      odd_scores<kDtype>(place, scores, q_rope, phase);
      ptx::wgmma_wait<0>();
      ptx::pin(scores);
      record.end(FASTNORM_PROFILE_QK, tile + 3);
    }
    tile += 2;
  }
}

// ---- outputs

__device__ __forceinline__ Normalized normalized(const RowState& state, float scale) {
  return {state.sum0 > 0 ? 1.0f / state.sum0 : 1.0f, state.sum1 > 0 ? 1.0f / state.sum1 : 1.0f,
          lse_of(state.sum0, state.max0, scale), lse_of(state.sum1, state.max1, scale)};
}

// A consumer's 64 x 256 outputs, rounded, as four sub-tiles.
template <Dtype kDtype>
__device__ __forceinline__ void stage_outputs(const Place& place, uint32_t stage,
                                              const float (&o)[128], float a, float b) {
#pragma unroll
  for (int step = 0; step < 16; ++step) {
    const float* v = o + 8 * step;
    stage_words(place, stage, step,
                {pack<kDtype>(v[0] * a, v[1] * a), pack<kDtype>(v[2] * b, v[3] * b),
                 pack<kDtype>(v[4] * a, v[5] * a), pack<kDtype>(v[6] * b, v[7] * b)});
  }
}

// Staged outputs to rows that no box fits; a warp stores 512 bytes of a row at once.
__device__ __forceinline__ void store_rows(const MlaDecodeParams& p, const Place& place,
                                           const Tokens& tokens, uint32_t stage) {
  const uint32_t sub_tile = static_cast<uint32_t>(place.lane >> 3);
  const uint32_t chunk = static_cast<uint32_t>(place.lane & 7);
  for (int i = 0; i < 16; ++i) {
    const int in_tile = place.warp * 16 + i;
    const int row = static_cast<int>(blockIdx.x) * kMlaTileRows + in_tile;
    if (row >= tokens.count * p.heads) break;
    const uint4 v = ptx::load_shared_v4(stage + sub_tile * kSubBytes +
                                        swizzled(static_cast<uint32_t>(in_tile), chunk));
    char* const out = p.o.data + (tokens.first + row / p.heads) * p.o.token_stride +
                      (row % p.heads) * p.o.head_stride + place.group * 512 + place.lane * 16;
    *reinterpret_cast<uint4*>(out) = v;
  }
}

// Staged outputs of a whole request, and their LSE.
__device__ __forceinline__ void store_outputs(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                              const Place& place, int request, uint32_t stage,
                                              const Normalized& rows) {
  const Tokens tokens = tokens_of(p, request);
  ptx::fence_async_proxy();
  ptx::named_barrier_sync(kOneGroup + place.group, kGroup);
  const int last_row = (static_cast<int>(blockIdx.x) + 1) * kMlaTileRows;
  const bool full = last_row <= tokens.count * p.heads;
  if (p.o_access != RowAccess::kRows && (full || p.o_clips != 0)) {
    if (place.thread == 0) {
      const RowBox box = row_box(p, p.o_access, request);
      ptx::tma_store_4d(&maps.o, stage, 0, box.x, box.y, place.group * 4);
      ptx::tma_store_commit();
      ptx::tma_store_wait_read();
    }
  } else {
    store_rows(p, place, tokens, stage);
  }
  if (place.group == 0 && p.lse != nullptr && (place.lane & 3) == 0) {
    const int row = static_cast<int>(blockIdx.x) * kMlaTileRows + place.row;
    store_lse(p, tokens, row, rows.lse0);
    store_lse(p, tokens, row + 8, rows.lse1);
  }
}

// Outputs of one piece of many.
__device__ __forceinline__ void store_piece(const MlaDecodeParams& p, const Place& place,
                                            int request, int piece, const float (&o)[128],
                                            const Normalized& rows) {
  const int row_count = tokens_of(p, request).count * p.heads;
  const int row = static_cast<int>(blockIdx.x) * kMlaTileRows + place.row;
  // As an unsigned number: the sign of `row` would take a register in all of the loop.
  const int64_t at =
      static_cast<int64_t>(piece) * p.m_tiles * kMlaTileRows + static_cast<uint32_t>(row);
  float* const out =
      p.partial_o + at * kMlaLatent + place.group * (kMlaLatent / 2) + 2 * (place.lane & 3);
  const bool first = row < row_count, second = row + 8 < row_count;
#pragma unroll
  for (int k = 0; k < 32; ++k) {
    const float* v = o + 4 * k;
    if (first) {
      *reinterpret_cast<float2*>(out + 8 * k) =
          make_float2(v[0] * rows.factor0, v[1] * rows.factor0);
    }
    if (second) {
      *reinterpret_cast<float2*>(out + 8 * kMlaLatent + 8 * k) =
          make_float2(v[2] * rows.factor1, v[3] * rows.factor1);
    }
  }
  if (place.group == 0 && (place.lane & 3) == 0) {
    p.partial_lse[at] = rows.lse0;
    p.partial_lse[at + 8] = rows.lse1;
  }
}

// `buffer` is a tile in whose half of this consumer nothing reads any more.
template <Dtype kDtype, int kAhead>
__device__ __forceinline__ void write_outputs(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                              const Place& place, int request, Piece piece,
                                              uint32_t buffer, const float (&o)[128],
                                              const RowState& state) {
  Normalized rows = normalized(state, p.scale_log2);
  const uint32_t stage = buffer + static_cast<uint32_t>(place.group) * 4 * kSubBytes;
  if (piece.is_of_pair()) {
    if (!leave_or_join<kDtype, kAhead>(p, place, piece, stage, o, rows)) return;
  } else if (piece.is_whole()) {
    rows.factor0 *= beside_sink(p, first_row(place), rows.lse0);
    rows.factor1 *= beside_sink(p, first_row(place) + 8, rows.lse1);
    stage_outputs<kDtype>(place, stage, o, rows.factor0, rows.factor1);
  } else {
    store_piece(p, place, request, piece.number(), o, rows);
    return;
  }
  store_outputs(p, maps, place, request, stage, rows);
}

// Zeros for a request without cached tokens. Neither the producer nor shared memory has part in it.
__device__ __forceinline__ void write_empty(const MlaDecodeParams& p, const Place& place,
                                            int request) {
  const Tokens tokens = tokens_of(p, request);
  for (int i = 0; i < 16; ++i) {
    const int row = static_cast<int>(blockIdx.x) * kMlaTileRows + place.warp * 16 + i;
    if (row >= tokens.count * p.heads) break;
    char* const out = p.o.data + (tokens.first + row / p.heads) * p.o.token_stride +
                      (row % p.heads) * p.o.head_stride + place.group * 512 + place.lane * 16;
    *reinterpret_cast<uint4*>(out) = make_uint4(0, 0, 0, 0);
    if (p.lse != nullptr && place.group == 0 && place.lane == 0) {
      store_lse(p, tokens, row, -INFINITY);
    }
  }
}

// Adds the sums of a row's four lanes and of both consumers.
__device__ __forceinline__ void join_sums(const Place& place, RowState& state) {
  state.sum0 += __shfl_xor_sync(~0u, state.sum0, 1);
  state.sum0 += __shfl_xor_sync(~0u, state.sum0, 2);
  state.sum1 += __shfl_xor_sync(~0u, state.sum1, 1);
  state.sum1 += __shfl_xor_sync(~0u, state.sum1, 2);
  store_row_pair(place, place.group == 0 ? kEvenSum : kOddSum, state.sum0, state.sum1);
  ptx::named_barrier_sync(kBothGroups, kConsumers);
  if (place.group == 0 && place.thread == 0) {
    ptx::mbarrier_arrive(place.shared + kFreeQ);
  }
  float even0, even1, odd0, odd1;
  load_row_pair(place, kEvenSum, even0, even1);
  load_row_pair(place, kOddSum, odd0, odd1);
  state.sum0 = even0 + odd0;
  state.sum1 = even1 + odd1;
}

template <Dtype kDtype, bool kRecords>
__device__ __forceinline__ void consume(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                        const Place& place, const Recorder<kRecords>& record) {
  Walk walk(p);
  Item item;
  // Phases of the warpgroup's tile and of Q. If one register had both, the compiler would not know
  // that they are the same in all threads of a warp.
  uint32_t phase = 0, q_phase = 0;
  while (walk.next(p, item)) {
    if (!item.has_rows) continue;
    record.begin(FASTNORM_PROFILE_WORK, walk.item_request());
    record.count_piece(p, place);
    begin_pair(p, place, item.piece);
    if (item.first_tile >= item.end_tile) {
      write_empty(p, place, walk.item_request());
      record.end(FASTNORM_PROFILE_WORK, walk.item_request());
      continue;
    }
    float o[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0;
    RowState state = {kFirstMaximum, kFirstMaximum, 0, 0};
    record.begin(FASTNORM_PROFILE_WAIT_Q, walk.item_request());
    ptx::mbarrier_wait(place.shared + kFullQ, q_phase);
    record.end(FASTNORM_PROFILE_WAIT_Q, walk.item_request());
    q_phase ^= 1;
    const TileLoop loop = {p, place, item};
    if (place.group == 0) {
      even_tiles<kDtype>(loop, record, o, state, phase);
    } else {
      odd_tiles<kDtype>(loop, record, o, state, phase);
    }
    record.begin(FASTNORM_PROFILE_WRITE_O, walk.item_request());
    join_sums(place, state);
    write_outputs<kDtype, 4>(p, maps, place, walk.item_request(), item.piece, place.shared + kOdd,
                             o, state);
    __syncwarp();  // lane 0 of a storing warp has waited until its stage was read
    release(place, kFreeStage);
    record.end(FASTNORM_PROFILE_WRITE_O, walk.item_request());
    record.end(FASTNORM_PROFILE_WORK, walk.item_request());
  }
}

}  // namespace fastnorm::cuda::mla
