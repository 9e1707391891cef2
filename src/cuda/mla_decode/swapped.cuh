// Attention of calls whose requests have few query rows: 16 or 32 at most. The operands of both
// products change places, so that rows are the narrow side of a product and nothing is padded to
// 64 of them:
//
//   S^T = K Q^T    64 tokens x kRows
//   O^T = V^T P^T  512 columns x kRows, as eight products of 64 columns
//
// One warpgroup computes all of it. What the narrow operands leave of shared memory is a ring of
// sub-tiles, 64 tokens x 64 columns each: nearly three tiles of the cache are on their way or in
// use. A tile's sub-tiles are free again when its own two products have ended.
//
// A thread has tokens (or columns of O) `lane / 4` and, 8 behind it, those of its warp, and of each
// eight rows two: element 4 * j + 2 * g + e is row 8 * j + 2 * (lane % 4) + e, and g is which of
// the two tokens.
#pragma once

#include "cuda/mla_decode/maps.h"
#include "cuda/mla_decode/pair.cuh"
#include "cuda/mla_decode/tile.cuh"
#include "cuda/mla_decode/work.cuh"

namespace fastnorm::cuda::mla {

inline constexpr int kSwappedThreads = 192;  // a warpgroup that computes, and two warps that load
inline constexpr int kBlocks = 8;            // of 64 columns of O

// Shared memory. Queries are nine sub-tiles of kRows rows; outputs are staged on eight of them.
template <int kRows>
struct SwappedShared {
  static constexpr uint32_t kQuerySubBytes = kRows * 128;
  static constexpr uint32_t kProb = kSubTiles * kQuerySubBytes;  // P, [kRows] x 64 tokens
  static constexpr uint32_t kRing = kProb + kQuerySubBytes;
  static constexpr int kSlots = (kMaximum - kRing) / kSubBytes;
  static constexpr uint32_t kWarpMaxima = kMaximum;                   // [4 warps][kRows]
  static constexpr uint32_t kWarpSums = kWarpMaxima + 4 * kRows * 4;  // [4 warps][kRows]
  static constexpr uint32_t kFullSlots = kBarriers;                   // [kSlots]
  static constexpr uint32_t kFreeSlots = kFullSlots + 8 * kSlots;     // [kSlots]
  static constexpr uint32_t kFullQueries = kFreeSlots + 8 * kSlots;
  static constexpr uint32_t kFreeQueries = kFullQueries + 8;
  static_assert(kRing % 1024 == 0 && kWarpSums + 4 * kRows * 4 <= kTaken);
  static_assert(kFreeQueries + 8 <= kSharedBytes);
  static_assert(kSlots >= kSubTiles);  // a tile's slots are freed together, behind its scores
};

// A place in the ring, and the parity of what fills it.
template <int kRows>
struct RingPlace {
  int slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++slot != SwappedShared<kRows>::kSlots) return;
    slot = 0;
    phase ^= 1;
  }
  __device__ __forceinline__ uint32_t memory(const Place& place) const {
    return place.shared + SwappedShared<kRows>::kRing + static_cast<uint32_t>(slot) * kSubBytes;
  }
  __device__ __forceinline__ uint32_t full(const Place& place) const {
    return place.shared + SwappedShared<kRows>::kFullSlots + static_cast<uint32_t>(slot) * 8;
  }
  __device__ __forceinline__ uint32_t free(const Place& place) const {
    return place.shared + SwappedShared<kRows>::kFreeSlots + static_cast<uint32_t>(slot) * 8;
  }
};

// ---- loads, each by one thread

template <int kRows>
__device__ __forceinline__ void load_queries(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                             const Place& place) {
  using Shared = SwappedShared<kRows>;
  const uint32_t full = place.shared + Shared::kFullQueries;
  uint32_t free_phase = 1;
  Walk walk(p);
  Item item;
  while (walk.next(p, item)) {
    if (!item.has_rows || item.first_tile >= item.end_tile) continue;  // no tiles are wanted
    ptx::mbarrier_wait(place.shared + Shared::kFreeQueries, free_phase);
    free_phase ^= 1;
    const RowBox box = row_box(p, p.q_access, item.request);
    ptx::mbarrier_arrive_expect(full, kSubTiles * Shared::kQuerySubBytes);
    ptx::tma_load_4d(place.shared, &maps.q_nope, full, 0, box.x, box.y, 0, ptx::kEvictNormal);
    ptx::tma_load_4d(place.shared + kRopeSubTile * Shared::kQuerySubBytes, &maps.q_pe, full, 0,
                     box.x, box.y, 0, ptx::kEvictNormal);
  }
}

// The pages of a tile: one, or several that are smaller.
struct TilePages {
  static constexpr int kMost = 4;
  int page[kMost];
  int count, row;  // `row` of the page, where it has 64 or more

  __device__ __forceinline__ TilePages(const MlaDecodeParams& p, const int32_t* list,
                                       const Item& item, int tile) {
    const int token = tile * kMlaTileTokens;
    const int end = min(min(token + kMlaTileTokens, item.length), item.end_tile * kMlaTileTokens);
    count = p.page.size >= kMlaTileTokens ? 1 : (end - token + p.page.size - 1) / p.page.size;
    const int first = token / p.page.size;
    row = token - first * p.page.size;
#pragma unroll
    for (int i = 0; i < kMost; ++i) page[i] = token < end && i < count ? list[first + i] : 0;
  }
};

template <int kRows>
__device__ __forceinline__ void load_cache(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                           const Place& place) {
  const uint32_t box_bytes = static_cast<uint32_t>(min(p.page.size, kMlaTileTokens)) * 128;
  RingPlace<kRows> ring;
  Walk walk(p);
  Item item;
  while (walk.next(p, item)) {
    if (!item.has_rows) continue;
    const int32_t* const list =
        p.page_table +
        (p.kv_indptr != nullptr ? p.kv_indptr[item.request] : item.request * p.table_stride);
    if (item.first_tile >= item.end_tile) continue;
    TilePages pages(p, list, item, item.first_tile);
    for (int tile = item.first_tile; tile < item.end_tile; ++tile) {
      const TilePages next(p, list, item, tile + 1);
#pragma unroll
      for (int c = 0; c < kSubTiles; ++c) {
        const bool rope = c == kRopeSubTile;
        const uint32_t full = ring.full(place);
        ptx::mbarrier_wait(ring.free(place), ring.phase ^ 1);
        ptx::mbarrier_arrive_expect(full, static_cast<int>(box_bytes) * pages.count);
#pragma unroll
        for (int i = 0; i < TilePages::kMost; ++i) {
          if (i >= pages.count) break;
          ptx::tma_load_4d(ring.memory(place) + static_cast<uint32_t>(i) * box_bytes,
                           rope ? &maps.kpe : &maps.ckv, full, 0, pages.row, rope ? 0 : c,
                           pages.page[i], ptx::kEvictFirst);
        }
        ring.advance();
      }
      pages = next;
    }
  }
}

// ---- scores and probabilities

template <Dtype kDtype>
__device__ __forceinline__ void product(float (&d)[8], uint64_t a, uint64_t b, int accumulate) {
  ptx::wgmma_n16_ss<kDtype>(d, a, b, accumulate);
}
template <Dtype kDtype>
__device__ __forceinline__ void product(float (&d)[16], uint64_t a, uint64_t b, int accumulate) {
  ptx::wgmma_n32_ss<kDtype>(d, a, b, accumulate);
}
// The same with the transpose of `a`.
template <Dtype kDtype>
__device__ __forceinline__ void transposed_product(float (&d)[8], uint64_t a, uint64_t b) {
  ptx::wgmma_n16_ss_at<kDtype>(d, a, b, 1);
}
template <Dtype kDtype>
__device__ __forceinline__ void transposed_product(float (&d)[16], uint64_t a, uint64_t b) {
  ptx::wgmma_n32_ss_at<kDtype>(d, a, b, 1);
}

// Of a thread's rows.
template <int kRows>
struct SwappedState {
  static constexpr int kOwn = kRows / 4;
  float maximum[kOwn], sum[kOwn];
};

// Row of a request that is number `i` of the thread's.
__device__ __forceinline__ int swapped_row(const Place& place, int i) {
  return 8 * (i / 2) + 2 * (place.lane & 3) + (i & 1);
}

// The greatest, or the sum, over the eight lanes that share rows.
template <class Join>
__device__ __forceinline__ float over_tokens(float v, const Join& join) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) {
    v = join(v, __shfl_xor_sync(~0u, v, distance));
  }
  return v;
}

// What each warp has of the rows, joined: in all threads. `words` is [4 warps][kRows] in shared
// memory, which nothing reads any more.
template <int kRows, class Join>
__device__ __forceinline__ void over_warps(const Place& place, uint32_t words,
                                           float (&v)[kRows / 4], const Join& join) {
  const auto word = [&](int warp, int i) {
    return place.shared + words + static_cast<uint32_t>(warp * kRows + swapped_row(place, i)) * 4;
  };
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    v[i] = over_tokens(v[i], join);
    if (place.lane < 4) ptx::store_shared_f32(word(place.warp, i), v[i]);
  }
  ptx::named_barrier_sync(kOneGroup, kGroup);
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    v[i] = join(join(ptx::load_shared_f32(word(0, i)), ptx::load_shared_f32(word(1, i))),
                join(ptx::load_shared_f32(word(2, i)), ptx::load_shared_f32(word(3, i))));
  }
}

// scores = K Q^T of a tile, whose sub-tiles come one after another.
template <Dtype kDtype, int kRows>
__device__ __forceinline__ void swapped_scores(const Place& place, RingPlace<kRows>& ring,
                                               float (&scores)[kRows / 2]) {
#pragma unroll
  for (int c = 0; c < kSubTiles; ++c) {
    ptx::mbarrier_wait(ring.full(place), ring.phase);
    ptx::wgmma_fence();  // without one behind each spin ptxas serialises the group
    const uint64_t keys = key_matrix(ring.memory(place));
    const uint64_t queries = key_matrix(place.shared + c * SwappedShared<kRows>::kQuerySubBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      product<kDtype>(scores, ptx::matrix_behind(keys, step * 32),
                      ptx::matrix_behind(queries, step * 32), c + step != 0);
    }
    ring.advance();
  }
  ptx::wgmma_commit();
}

template <int kRows>
__device__ __forceinline__ void mask_swapped(const MlaDecodeParams& p, const Place& place,
                                             const Item& item, int tile,
                                             float (&scores)[kRows / 2]) {
  if ((tile + 1) * kMlaTileTokens <= min(item.first_limit, item.length)) return;
  const int token = tile * kMlaTileTokens + place.row;
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    const int limit = limit_of(p, item, swapped_row(place, i));
    const int first = 4 * (i / 2) + (i & 1);
    if (token >= limit) scores[first] = kMasked;
    if (token + 8 >= limit) scores[first + 2] = kMasked;
  }
}

// Takes over the maxima of the tile's rows that outgrew theirs.
template <int kRows>
__device__ __forceinline__ void grow_swapped(const Place& place, float (&own)[kRows / 4],
                                             float (&o)[kBlocks][kRows / 2],
                                             SwappedState<kRows>& state, float scale) {
  over_warps<kRows>(place, SwappedShared<kRows>::kWarpMaxima, own,
                    [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    const float before = state.maximum[i];
    if ((own[i] - before) * scale > kKeptGrowth) state.maximum[i] = own[i];
    const float factor = ptx::exp2_approx((before - state.maximum[i]) * scale);
    state.sum[i] *= factor;
    const int first = 4 * (i / 2) + (i & 1);
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
      o[c][first] *= factor;
      o[c][first + 2] *= factor;
    }
  }
}

// 16 tokens, or columns, of a warp and eight rows: words of rows' neighbours, into the sub-tile of
// kRows rows x 64 columns at `to`. Two groups of eight rows a call.
__device__ __forceinline__ void store_transposed(const Place& place, uint32_t to, int rows,
                                                 const uint32_t (&words)[4]) {
  const auto matrix = static_cast<uint32_t>(place.lane >> 3);
  const auto row = static_cast<uint32_t>(rows + (place.lane & 7)) + 8 * (matrix >> 1);
  const auto chunk = static_cast<uint32_t>(2 * place.warp) + (matrix & 1);
  ptx::stmatrix_x4_t(to + swizzled(row, chunk), words[0], words[1], words[2], words[3]);
}

// P of a tile, into shared memory.
template <Dtype kDtype, int kRows>
__device__ __forceinline__ void swapped_softmax(const MlaDecodeParams& p, const Place& place,
                                                const Item& item, int tile,
                                                float (&scores)[kRows / 2],
                                                float (&o)[kBlocks][kRows / 2],
                                                SwappedState<kRows>& state) {
  constexpr int kOwn = kRows / 4;
  const float scale = p.scale_log2;
  mask_swapped<kRows>(p, place, item, tile, scores);
  float own[kOwn];
  bool grew = false;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int first = 4 * (i / 2) + (i & 1);
    own[i] = fmaxf(scores[first], scores[first + 2]);
    grew |= (own[i] - state.maximum[i]) * scale > kKeptGrowth;
  }
  if (ptx::named_barrier_any(kBothGroups, kGroup, grew)) {
    grow_swapped<kRows>(place, own, o, state, scale);
  }
#pragma unroll
  for (int rows = 0; rows < kRows; rows += 16) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = rows / 4 + 2 * j, first = 2 * i;
      float v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        v[k] = ptx::exp2_approx(
            __fmaf_rn(scores[first + k], scale, -state.maximum[i + (k & 1)] * scale));
      }
      state.sum[i] += v[0] + v[2];
      state.sum[i + 1] += v[1] + v[3];
      words[2 * j] = pack<kDtype>(v[0], v[1]);
      words[2 * j + 1] = pack<kDtype>(v[2], v[3]);
    }
    store_transposed(place, place.shared + SwappedShared<kRows>::kProb, rows, words);
  }
}

// Zeroes rows from `valid` on of a tile's latent columns: they may hold NaN, which P = 0 does not
// undo.
template <int kRows>
__device__ __forceinline__ void zero_values(const Place& place, RingPlace<kRows> ring, int valid) {
#pragma unroll
  for (int c = 0; c < kBlocks; ++c) {
    for (int i = valid * 8 + place.thread; i < 64 * 8; i += kGroup) {
      ptx::store_shared_zero_v4(ring.memory(place) + static_cast<uint32_t>(i) * 16);
    }
    ring.advance();
  }
}

// o += V^T P^T of blocks [kFrom, kTo).
template <Dtype kDtype, int kRows, int kFrom, int kTo>
__device__ __forceinline__ void add_swapped_values(const Place& place, RingPlace<kRows>& ring,
                                                   float (&o)[kBlocks][kRows / 2]) {
  const uint64_t prob = key_matrix(place.shared + SwappedShared<kRows>::kProb);
#pragma unroll
  for (int c = kFrom; c < kTo; ++c) {
    const uint64_t values = value_matrix(ring.memory(place));
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      transposed_product<kDtype>(o[c], ptx::matrix_behind(values, step * 2048),
                                 ptx::matrix_behind(prob, step * 32));
    }
    ring.advance();
  }
  ptx::wgmma_commit();
}

template <int kRows>
__device__ __forceinline__ void release_slots(const Place& place, RingPlace<kRows> ring,
                                              int count) {
  int slot = ring.slot + place.lane;
  if (slot >= SwappedShared<kRows>::kSlots) slot -= SwappedShared<kRows>::kSlots;
  if (place.lane < count) {
    ptx::mbarrier_arrive(place.shared + SwappedShared<kRows>::kFreeSlots +
                         static_cast<uint32_t>(slot) * 8);
  }
}

template <Dtype kDtype, int kRows>
__device__ __forceinline__ void swapped_tile(const MlaDecodeParams& p, const Place& place,
                                             const Item& item, int tile, RingPlace<kRows>& ring,
                                             float (&o)[kBlocks][kRows / 2],
                                             SwappedState<kRows>& state) {
  RingPlace<kRows> values = ring;
  float scores[kRows / 2];
  swapped_scores<kDtype, kRows>(place, ring, scores);
  ptx::wgmma_wait<0>();
  ptx::pin(scores);
  swapped_softmax<kDtype, kRows>(p, place, item, tile, scores, o, state);
  if ((tile + 1) * kMlaTileTokens > item.length) {
    zero_values<kRows>(place, values, item.length % kMlaTileTokens);
  }
  ptx::fence_async_proxy();
  ptx::named_barrier_sync(kOneGroup, kGroup);
#pragma unroll
  for (int c = 0; c < kBlocks; ++c) ptx::pin(o[c]);
  ptx::wgmma_fence();
  const RingPlace<kRows> left = values;
  add_swapped_values<kDtype, kRows, 0, 4>(place, values, o);
  const RingPlace<kRows> right = values;
  add_swapped_values<kDtype, kRows, 4, 8>(place, values, o);
  ptx::wgmma_wait<1>();
  release_slots<kRows>(place, left, 4);
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int c = 0; c < kBlocks; ++c) ptx::pin(o[c]);
  release_slots<kRows>(place, right, 5);  // and that of RoPE behind them
}

// ---- outputs

// Factors that normalise a thread's rows, and their LSE to base 2.
template <int kRows>
struct SwappedNormalized {
  float factor[kRows / 4], lse[kRows / 4];
};

// A warp's outputs of one block of columns, rounded: value(i) is element i of the thread's.
template <Dtype kDtype, int kRows, class Value>
__device__ __forceinline__ void stage_block(const Place& place, int c, const Value& value) {
#pragma unroll
  for (int rows = 0; rows < kRows; rows += 16) {
    const int first = rows / 2;
    store_transposed(place, place.shared + c * SwappedShared<kRows>::kQuerySubBytes, rows,
                     {pack<kDtype>(value(first), value(first + 1)),
                      pack<kDtype>(value(first + 2), value(first + 3)),
                      pack<kDtype>(value(first + 4), value(first + 5)),
                      pack<kDtype>(value(first + 6), value(first + 7))});
  }
}

// Number of the thread's row that has element i.
__device__ __forceinline__ constexpr int own_row(int element) {
  return 2 * (element / 4) + (element & 1);
}

template <int kRows>
__device__ __forceinline__ void store_swapped_piece(const MlaDecodeParams& p, const Place& place,
                                                    int row_count, int piece,
                                                    const float (&o)[kBlocks][kRows / 2],
                                                    const SwappedNormalized<kRows>& rows) {
  const int64_t at = static_cast<int64_t>(piece) * kMlaTileRows;
  float* const out = p.partial_o + at * kMlaLatent + place.row;
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    const int row = swapped_row(place, i), first = 4 * (i / 2) + (i & 1);
    if (row >= row_count) continue;
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
      out[row * kMlaLatent + c * 64] = o[c][first] * rows.factor[i];
      out[row * kMlaLatent + c * 64 + 8] = o[c][first + 2] * rows.factor[i];
    }
    if (place.thread < 4) p.partial_lse[at + row] = rows.lse[i];
  }
}

// Where the outputs of a pair pass from block to block: four columns of a thread at a time.
struct SwappedPairPlace {
  MlaDecodePair* pair;
  float4* o;
  float* lse;  // [rows]

  __device__ __forceinline__ SwappedPairPlace(const MlaDecodeParams& p, const Place& place,
                                              Piece piece) {
    const int64_t first = piece.first_of_pair();
    pair = p.pairs + first;
    o = reinterpret_cast<float4*>(p.partial_o + first * kMlaTileRows * kMlaLatent) + place.thread;
    lse = p.partial_lse + first * kMlaTileRows;
  }
};

template <int kRows>
__device__ __forceinline__ void leave_swapped(const SwappedPairPlace& at, const Place& place,
                                              const float (&o)[kBlocks][kRows / 2],
                                              const SwappedNormalized<kRows>& rows) {
#pragma unroll
  for (int c = 0; c < kBlocks; ++c) {
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float* const v = o[c] + 4 * j;
      const float a = rows.factor[2 * j], b = rows.factor[2 * j + 1];
      at.o[(c * (kRows / 8) + j) * kGroup] = make_float4(v[0] * a, v[1] * b, v[2] * a, v[3] * b);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    if (place.thread < 4) at.lse[swapped_row(place, i)] = rows.lse[i];
  }
  ptx::named_barrier_sync(kOneGroup, kGroup);
  if (place.thread == 0) ptx::raise_flag(&at.pair->written[0]);
}

// Stages the outputs of the whole request, and gives their LSE.
template <Dtype kDtype, int kRows, bool kSecond>
__device__ __forceinline__ void join_swapped(const MlaDecodeParams& p, const SwappedPairPlace& at,
                                             const Place& place,
                                             const float (&o)[kBlocks][kRows / 2],
                                             SwappedNormalized<kRows>& rows) {
  if (place.thread == 0) {
    ptx::wait_for_flag(&at.pair->written[0]);
    at.pair->taken[0] = at.pair->written[0] = 0;
  }
  ptx::named_barrier_sync(kOneGroup, kGroup);
  float own[kRows / 4], other[kRows / 4], factor[kRows / 4];
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    const float lse = __ldcg(at.lse + swapped_row(place, i));
    const PairWeights w = kSecond ? PairWeights(lse, rows.lse[i]) : PairWeights(rows.lse[i], lse);
    own[i] = kSecond ? w.second : w.first;
    other[i] = kSecond ? w.first : w.second;
    factor[i] = w.factor * beside_sink(p, swapped_row(place, i), w.lse);
    rows.lse[i] = w.lse;
  }
#pragma unroll
  for (int c = 0; c < kBlocks; ++c) {
    float joined[kRows / 2];
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float4 v = ptx::ld_global_cg_v4(at.o + (c * (kRows / 8) + j) * kGroup);
      const float others[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = own_row(4 * j + k);
        const float mine = o[c][4 * j + k] * rows.factor[i];
        // In the order of the pieces, as the merging kernel adds.
        const float sum = kSecond ? __fmaf_rn(own[i], mine, other[i] * others[k])
                                  : __fmaf_rn(other[i], others[k], own[i] * mine);
        joined[4 * j + k] = sum * factor[i];
      }
    }
    stage_block<kDtype, kRows>(place, c, [&](int i) { return joined[i]; });
  }
}

// Staged outputs of a whole request, and their LSE.
template <int kRows>
__device__ __forceinline__ void store_swapped(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                              const Place& place, int request,
                                              const SwappedNormalized<kRows>& rows) {
  const Tokens tokens = tokens_of(p, request);
  const int row_count = tokens.count * p.heads;
  ptx::fence_async_proxy();
  ptx::named_barrier_sync(kOneGroup, kGroup);
  if (p.o_access != RowAccess::kRows && (row_count >= kRows || p.o_clips != 0)) {
    if (place.thread == 0) {
      const RowBox box = row_box(p, p.o_access, request);
      ptx::tma_store_4d(&maps.o, place.shared, 0, box.x, box.y, 0);
      ptx::tma_store_commit();
      ptx::tma_store_wait_read();
    }
  } else {
    for (int i = place.thread; i < row_count * 64; i += kGroup) {
      const int row = i / 64;
      const auto c = static_cast<uint32_t>(i % 64 / 8), chunk = static_cast<uint32_t>(i % 8);
      char* const out = p.o.data + (tokens.first + row / p.heads) * p.o.token_stride +
                        (row % p.heads) * p.o.head_stride + i % 64 * 16;
      *reinterpret_cast<uint4*>(out) =
          ptx::load_shared_v4(place.shared + c * SwappedShared<kRows>::kQuerySubBytes +
                              swizzled(static_cast<uint32_t>(row), chunk));
    }
  }
  if (p.lse == nullptr || place.thread >= 4) return;
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    store_lse(p, tokens, swapped_row(place, i), rows.lse[i]);
  }
}

template <Dtype kDtype, int kRows>
__device__ __forceinline__ void write_swapped(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                              const Place& place, int request, Piece piece,
                                              const float (&o)[kBlocks][kRows / 2],
                                              SwappedState<kRows>& state) {
  over_warps<kRows>(place, SwappedShared<kRows>::kWarpSums, state.sum,
                    [](float a, float b) { return a + b; });
  SwappedNormalized<kRows> rows;
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    const float sum = state.sum[i];
    rows.factor[i] = sum > 0 ? 1.0f / sum : 1.0f;
    rows.lse[i] = lse_of(sum, state.maximum[i], p.scale_log2);
  }
  if (piece.is_of_pair()) {
    const SwappedPairPlace at(p, place, piece);
    if (began_first(place)) {
      leave_swapped<kRows>(at, place, o, rows);
      return;
    }
    if (piece.is_second()) {
      join_swapped<kDtype, kRows, true>(p, at, place, o, rows);
    } else {
      join_swapped<kDtype, kRows, false>(p, at, place, o, rows);
    }
  } else if (piece.is_whole()) {
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      rows.factor[i] *= beside_sink(p, swapped_row(place, i), rows.lse[i]);
    }
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
      stage_block<kDtype, kRows>(place, c,
                                 [&](int i) { return o[c][i] * rows.factor[own_row(i)]; });
    }
  } else {
    store_swapped_piece<kRows>(p, place, tokens_of(p, request).count * p.heads, piece.number(), o,
                               rows);
    return;
  }
  store_swapped<kRows>(p, maps, place, request, rows);
}

// Zeros for a request without cached tokens.
__device__ __forceinline__ void write_empty_rows(const MlaDecodeParams& p, const Place& place,
                                                 int request) {
  const Tokens tokens = tokens_of(p, request);
  for (int i = place.thread; i < tokens.count * p.heads * 64; i += kGroup) {
    const int row = i / 64;
    char* const out = p.o.data + (tokens.first + row / p.heads) * p.o.token_stride +
                      (row % p.heads) * p.o.head_stride + i % 64 * 16;
    *reinterpret_cast<uint4*>(out) = make_uint4(0, 0, 0, 0);
    if (p.lse != nullptr && i % 64 == 0) store_lse(p, tokens, row, -INFINITY);
  }
}

template <Dtype kDtype, int kRows>
__device__ __forceinline__ void consume_swapped(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                                const Place& place) {
  using Shared = SwappedShared<kRows>;
  Walk walk(p);
  Item item;
  RingPlace<kRows> ring;
  uint32_t q_phase = 0;
  while (walk.next(p, item)) {
    if (!item.has_rows) continue;
    begin_pair(p, place, item.piece);
    if (item.first_tile >= item.end_tile) {
      write_empty_rows(p, place, walk.item_request());
      continue;
    }
    float o[kBlocks][kRows / 2];
    SwappedState<kRows> state;
#pragma unroll
    for (int i = 0; i < kBlocks * kRows / 2; ++i) o[i / (kRows / 2)][i % (kRows / 2)] = 0;
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) state.maximum[i] = kFirstMaximum, state.sum[i] = 0;
    ptx::mbarrier_wait(place.shared + Shared::kFullQueries, q_phase);
    q_phase ^= 1;
    for (int tile = item.first_tile; tile < item.end_tile; ++tile) {
      swapped_tile<kDtype, kRows>(p, place, item, tile, ring, o, state);
    }
    write_swapped<kDtype, kRows>(p, maps, place, walk.item_request(), item.piece, o, state);
    __syncwarp();  // all lanes have read their rows of the stage
    release(place, Shared::kFreeQueries);
  }
}

}  // namespace fastnorm::cuda::mla
