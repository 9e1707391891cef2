// Attention of calls whose requests have few query rows, 16 at most. The operands of both products
// change places, so that rows are the narrow side of a product and nothing is padded to 64 of them:
//
//   S^T = K Q^T    64 tokens x 16 rows
//   O^T = V^T P^T  512 columns x 16 rows, as eight products of 64 columns
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

inline constexpr int kRows = kMlaFewerRows;
inline constexpr int kOwnRows = kRows / 4;    // of a thread
inline constexpr int kOwnValues = kRows / 2;  // two tokens, or columns of O, of these
inline constexpr int kSwappedThreads = 192;   // a warpgroup that computes, and two warps that load
inline constexpr int kBlocks = 8;             // of 64 columns of O

// Shared memory. Queries are nine sub-tiles of 16 rows; outputs are staged on eight of them.
struct SwappedShared {
  static constexpr uint32_t kQuerySubBytes = kRows * 128;
  static constexpr uint32_t kProb = kSubTiles * kQuerySubBytes;  // P, 16 rows x 64 tokens
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
struct RingPlace {
  int slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++slot != SwappedShared::kSlots) return;
    slot = 0;
    phase ^= 1;
  }
  __device__ __forceinline__ uint32_t memory(const Place& place) const {
    return place.shared + SwappedShared::kRing + static_cast<uint32_t>(slot) * kSubBytes;
  }
  __device__ __forceinline__ uint32_t full(const Place& place) const {
    return place.shared + SwappedShared::kFullSlots + static_cast<uint32_t>(slot) * 8;
  }
  __device__ __forceinline__ uint32_t free(const Place& place) const {
    return place.shared + SwappedShared::kFreeSlots + static_cast<uint32_t>(slot) * 8;
  }
};

// ---- loads, each by one thread

__device__ __forceinline__ void load_queries(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                             const Place& place) {
  using Shared = SwappedShared;
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

__device__ __forceinline__ void load_cache(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                           const Place& place) {
  const uint32_t box_bytes = static_cast<uint32_t>(min(p.page.size, kMlaTileTokens)) * 128;
  RingPlace ring;
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

// Of a thread's rows.
struct SwappedState {
  float maximum[kOwnRows], sum[kOwnRows];
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
template <class Join>
__device__ __forceinline__ void over_warps(const Place& place, uint32_t words, float (&v)[kOwnRows],
                                           const Join& join) {
  const auto word = [&](int warp, int i) {
    return place.shared + words + static_cast<uint32_t>(warp * kRows + swapped_row(place, i)) * 4;
  };
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    v[i] = over_tokens(v[i], join);
    if (place.lane < 4) ptx::store_shared_f32(word(place.warp, i), v[i]);
  }
  ptx::named_barrier_sync(kOneGroup, kGroup);
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    v[i] = join(join(ptx::load_shared_f32(word(0, i)), ptx::load_shared_f32(word(1, i))),
                join(ptx::load_shared_f32(word(2, i)), ptx::load_shared_f32(word(3, i))));
  }
}

// scores = K Q^T of a tile, whose sub-tiles come one after another.
template <Dtype kDtype>
__device__ __forceinline__ void swapped_scores(const Place& place, RingPlace& ring,
                                               float (&scores)[kOwnValues]) {
#pragma unroll
  for (int c = 0; c < kSubTiles; ++c) {
    ptx::mbarrier_wait(ring.full(place), ring.phase);
    ptx::wgmma_fence();  // without one behind each spin ptxas serialises the group
    const uint64_t keys = key_matrix(ring.memory(place));
    const uint64_t queries = key_matrix(place.shared + c * SwappedShared::kQuerySubBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::wgmma_n16_ss<kDtype>(scores, ptx::matrix_behind(keys, step * 32),
                                ptx::matrix_behind(queries, step * 32), c + step != 0);
    }
    ring.advance();
  }
  ptx::wgmma_commit();
}

__device__ __forceinline__ void mask_swapped(const MlaDecodeParams& p, const Place& place,
                                             const Item& item, int tile,
                                             float (&scores)[kOwnValues]) {
  if ((tile + 1) * kMlaTileTokens <= min(item.first_limit, item.length)) return;
  const int token = tile * kMlaTileTokens + place.row;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int limit = limit_of(p, item, swapped_row(place, i));
    const int first = 4 * (i / 2) + (i & 1);
    if (token >= limit) scores[first] = kMasked;
    if (token + 8 >= limit) scores[first + 2] = kMasked;
  }
}

// Takes over the maxima of the tile's rows that outgrew theirs.
__device__ __forceinline__ void grow_swapped(const Place& place, float (&own)[kOwnRows],
                                             float (&o)[kBlocks][kOwnValues], SwappedState& state,
                                             float scale) {
  over_warps(place, SwappedShared::kWarpMaxima, own, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
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

// 16 tokens, or columns, of a warp: words of rows' neighbours, into the sub-tile of 16 rows x 64
// columns at `to`.
__device__ __forceinline__ void store_transposed(const Place& place, uint32_t to,
                                                 const uint32_t (&words)[4]) {
  const auto matrix = static_cast<uint32_t>(place.lane >> 3);
  const auto row = static_cast<uint32_t>(place.lane & 7) + 8 * (matrix >> 1);
  const auto chunk = static_cast<uint32_t>(2 * place.warp) + (matrix & 1);
  ptx::stmatrix_x4_t(to + swizzled(row, chunk), words[0], words[1], words[2], words[3]);
}

// P of a tile, into shared memory.
template <Dtype kDtype>
__device__ __forceinline__ void swapped_softmax(const MlaDecodeParams& p, const Place& place,
                                                const Item& item, int tile,
                                                float (&scores)[kOwnValues],
                                                float (&o)[kBlocks][kOwnValues],
                                                SwappedState& state) {
  const float scale = p.scale_log2;
  mask_swapped(p, place, item, tile, scores);
  float own[kOwnRows];
  bool grew = false;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const int first = 4 * (i / 2) + (i & 1);
    own[i] = fmaxf(scores[first], scores[first + 2]);
    grew |= (own[i] - state.maximum[i]) * scale > kKeptGrowth;
  }
  if (ptx::named_barrier_any(kBothGroups, kGroup, grew)) {
    grow_swapped(place, own, o, state, scale);
  }
  uint32_t words[4];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = 2 * j;
    float v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      v[k] = ptx::exp2_approx(
          __fmaf_rn(scores[4 * j + k], scale, -state.maximum[i + (k & 1)] * scale));
    }
    state.sum[i] += v[0] + v[2];
    state.sum[i + 1] += v[1] + v[3];
    words[2 * j] = pack<kDtype>(v[0], v[1]);
    words[2 * j + 1] = pack<kDtype>(v[2], v[3]);
  }
  store_transposed(place, place.shared + SwappedShared::kProb, words);
}

// Zeroes rows from `valid` on of a tile's latent columns: they may hold NaN, which P = 0 does not
// undo.
__device__ __forceinline__ void zero_values(const Place& place, RingPlace ring, int valid) {
#pragma unroll
  for (int c = 0; c < kBlocks; ++c) {
    for (int i = valid * 8 + place.thread; i < 64 * 8; i += kGroup) {
      ptx::store_shared_zero_v4(ring.memory(place) + static_cast<uint32_t>(i) * 16);
    }
    ring.advance();
  }
}

// o += V^T P^T of blocks [kFrom, kTo).
template <Dtype kDtype, int kFrom, int kTo>
__device__ __forceinline__ void add_swapped_values(const Place& place, RingPlace& ring,
                                                   float (&o)[kBlocks][kOwnValues]) {
  const uint64_t prob = key_matrix(place.shared + SwappedShared::kProb);
#pragma unroll
  for (int c = kFrom; c < kTo; ++c) {
    const uint64_t values = value_matrix(ring.memory(place));
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::wgmma_n16_ss_at<kDtype>(o[c], ptx::matrix_behind(values, step * 2048),
                                   ptx::matrix_behind(prob, step * 32), 1);
    }
    ring.advance();
  }
  ptx::wgmma_commit();
}

__device__ __forceinline__ void release_slots(const Place& place, RingPlace ring, int count) {
  int slot = ring.slot + place.lane;
  if (slot >= SwappedShared::kSlots) slot -= SwappedShared::kSlots;
  if (place.lane < count) {
    ptx::mbarrier_arrive(place.shared + SwappedShared::kFreeSlots +
                         static_cast<uint32_t>(slot) * 8);
  }
}

template <Dtype kDtype>
__device__ __forceinline__ void swapped_tile(const MlaDecodeParams& p, const Place& place,
                                             const Item& item, int tile, RingPlace& ring,
                                             float (&o)[kBlocks][kOwnValues], SwappedState& state) {
  RingPlace values = ring;
  float scores[kOwnValues];
  swapped_scores<kDtype>(place, ring, scores);
  ptx::wgmma_wait<0>();
  ptx::pin(scores);
  swapped_softmax<kDtype>(p, place, item, tile, scores, o, state);
  if ((tile + 1) * kMlaTileTokens > item.length) {
    zero_values(place, values, item.length % kMlaTileTokens);
  }
  ptx::fence_async_proxy();
  ptx::named_barrier_sync(kOneGroup, kGroup);
#pragma unroll
  for (int c = 0; c < kBlocks; ++c) ptx::pin(o[c]);
  ptx::wgmma_fence();
  const RingPlace left = values;
  add_swapped_values<kDtype, 0, 4>(place, values, o);
  const RingPlace right = values;
  add_swapped_values<kDtype, 4, 8>(place, values, o);
  ptx::wgmma_wait<1>();
  release_slots(place, left, 4);
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int c = 0; c < kBlocks; ++c) ptx::pin(o[c]);
  release_slots(place, right, 5);  // and that of RoPE behind them
}

// ---- outputs

// Factors that normalise a thread's rows, and their LSE to base 2.
struct SwappedNormalized {
  float factor[kOwnRows], lse[kOwnRows];
};

// A warp's outputs of one block of columns, rounded: value(i) is element i of the thread's.
template <Dtype kDtype, class Value>
__device__ __forceinline__ void stage_block(const Place& place, int c, const Value& value) {
  store_transposed(place, place.shared + c * SwappedShared::kQuerySubBytes,
                   {pack<kDtype>(value(0), value(1)), pack<kDtype>(value(2), value(3)),
                    pack<kDtype>(value(4), value(5)), pack<kDtype>(value(6), value(7))});
}

// Number of the thread's row that has element i.
__device__ __forceinline__ constexpr int own_row(int element) {
  return 2 * (element / 4) + (element & 1);
}

__device__ __forceinline__ void store_swapped_piece(const MlaDecodeParams& p, const Place& place,
                                                    int row_count, int piece,
                                                    const float (&o)[kBlocks][kOwnValues],
                                                    const SwappedNormalized& rows) {
  const int64_t at = static_cast<int64_t>(piece) * kMlaTileRows;
  float* const out = p.partial_o + at * kMlaLatent + place.row;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
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

__device__ __forceinline__ void leave_swapped(const SwappedPairPlace& at, const Place& place,
                                              const float (&o)[kBlocks][kOwnValues],
                                              const SwappedNormalized& rows) {
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
  for (int i = 0; i < kOwnRows; ++i) {
    if (place.thread < 4) at.lse[swapped_row(place, i)] = rows.lse[i];
  }
  ptx::named_barrier_sync(kOneGroup, kGroup);
  if (place.thread == 0) ptx::raise_flag(&at.pair->written[0]);
}

// Stages the outputs of the whole request, and gives their LSE.
template <Dtype kDtype, bool kSecond>
__device__ __forceinline__ void join_swapped(const MlaDecodeParams& p, const SwappedPairPlace& at,
                                             const Place& place,
                                             const float (&o)[kBlocks][kOwnValues],
                                             SwappedNormalized& rows) {
  if (place.thread == 0) {
    ptx::wait_for_flag(&at.pair->written[0]);
    at.pair->taken[0] = at.pair->written[0] = 0;
  }
  ptx::named_barrier_sync(kOneGroup, kGroup);
  float own[kOwnRows], other[kOwnRows], factor[kOwnRows];
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const float lse = __ldcg(at.lse + swapped_row(place, i));
    const PairWeights w = kSecond ? PairWeights(lse, rows.lse[i]) : PairWeights(rows.lse[i], lse);
    own[i] = kSecond ? w.second : w.first;
    other[i] = kSecond ? w.first : w.second;
    factor[i] = w.factor * beside_sink(p, swapped_row(place, i), w.lse);
    rows.lse[i] = w.lse;
  }
#pragma unroll
  for (int c = 0; c < kBlocks; ++c) {
    float joined[kOwnValues];
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
    stage_block<kDtype>(place, c, [&](int i) { return joined[i]; });
  }
}

// Staged outputs of a whole request, and their LSE.
__device__ __forceinline__ void store_swapped(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                              const Place& place, int request,
                                              const SwappedNormalized& rows) {
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
          ptx::load_shared_v4(place.shared + c * SwappedShared::kQuerySubBytes +
                              swizzled(static_cast<uint32_t>(row), chunk));
    }
  }
  if (p.lse == nullptr || place.thread >= 4) return;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    store_lse(p, tokens, swapped_row(place, i), rows.lse[i]);
  }
}

template <Dtype kDtype>
__device__ __forceinline__ void write_swapped(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                              const Place& place, int request, Piece piece,
                                              const float (&o)[kBlocks][kOwnValues],
                                              SwappedState& state) {
  over_warps(place, SwappedShared::kWarpSums, state.sum, [](float a, float b) { return a + b; });
  SwappedNormalized rows;
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    const float sum = state.sum[i];
    rows.factor[i] = sum > 0 ? 1.0f / sum : 1.0f;
    rows.lse[i] = lse_of(sum, state.maximum[i], p.scale_log2);
  }
  if (piece.is_of_pair()) {
    const SwappedPairPlace at(p, place, piece);
    if (began_first(place)) {
      leave_swapped(at, place, o, rows);
      return;
    }
    if (piece.is_second()) {
      join_swapped<kDtype, true>(p, at, place, o, rows);
    } else {
      join_swapped<kDtype, false>(p, at, place, o, rows);
    }
  } else if (piece.is_whole()) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      rows.factor[i] *= beside_sink(p, swapped_row(place, i), rows.lse[i]);
    }
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
      stage_block<kDtype>(place, c, [&](int i) { return o[c][i] * rows.factor[own_row(i)]; });
    }
  } else {
    store_swapped_piece(p, place, tokens_of(p, request).count * p.heads, piece.number(), o, rows);
    return;
  }
  store_swapped(p, maps, place, request, rows);
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

template <Dtype kDtype>
__device__ __forceinline__ void consume_swapped(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                                const Place& place) {
  using Shared = SwappedShared;
  Walk walk(p);
  Item item;
  RingPlace ring;
  uint32_t q_phase = 0;
  while (walk.next(p, item)) {
    if (!item.has_rows) continue;
    begin_pair(p, place, item.piece);
    if (item.first_tile >= item.end_tile) {
      write_empty_rows(p, place, walk.item_request());
      continue;
    }
    float o[kBlocks][kOwnValues];
    SwappedState state;
#pragma unroll
    for (int i = 0; i < kBlocks * kOwnValues; ++i) o[i / kOwnValues][i % kOwnValues] = 0;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) state.maximum[i] = kFirstMaximum, state.sum[i] = 0;
    ptx::mbarrier_wait(place.shared + Shared::kFullQueries, q_phase);
    q_phase ^= 1;
    for (int tile = item.first_tile; tile < item.end_tile; ++tile) {
      swapped_tile<kDtype>(p, place, item, tile, ring, o, state);
    }
    write_swapped<kDtype>(p, maps, place, walk.item_request(), item.piece, o, state);
    __syncwarp();  // all lanes have read their rows of the stage
    release(place, Shared::kFreeQueries);
  }
}

}  // namespace fastnorm::cuda::mla
