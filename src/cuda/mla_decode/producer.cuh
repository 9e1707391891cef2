// The warpgroup that loads. Tensor-map boxes are issued by the first thread of a warp. Rows without
// a box (pages of any size, queries of any strides) are copied 16 bytes a thread: queries by warps
// 1 to 3, the cache by all four warps.
//
// One thread does it all where every tile is part of one page and queries have boxes, the common
// case: its code is short, since a block that starts waits for its code to be fetched.
//
// A tile is loaded in halves, each into memory that its readers have freed: left is sub-tiles 0..3,
// right 4..8. In a pair's order: even left, odd right, even right, odd left.
#pragma once

#include "cuda/mla_decode/maps.h"
#include "cuda/mla_decode/record.cuh"
#include "cuda/mla_decode/tile.cuh"
#include "cuda/mla_decode/work.cuh"

namespace fastnorm::cuda::mla {

inline constexpr int kWarps = kGroup / 32;
inline constexpr int kQueryWarps = kWarps - 1;

__device__ __forceinline__ const int32_t* page_list(const MlaDecodeParams& p, int request) {
  return p.page_table + (p.kv_indptr != nullptr ? p.kv_indptr[request] : request * p.table_stride);
}

// A warp's copies that are on their way, and the full barriers that wait for them.
struct Copies {
  uint32_t barrier;
  int barriers = 0;

  // Reports them once at most kPending groups of copies are left.
  template <int kPending>
  __device__ __forceinline__ void report(int lane) {
    if (barriers == 0) return;
    ptx::copy_async_wait_groups<kPending>();
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
      for (int i = 0; i < barriers; ++i) ptx::mbarrier_arrive(barrier + i * 8);
    }
    barriers = 0;
  }
  // Reports the copies before, and remembers those just issued, which `new_barrier` waits for.
  __device__ __forceinline__ void follow(uint32_t new_barrier, int count, int lane) {
    ptx::copy_async_commit();
    report<1>(lane);
    barrier = new_barrier;
    barriers = count;
  }
  // Waits for free memory. What is on its way is reported first: its readers may free that memory.
  __device__ __forceinline__ void wait_free(uint32_t free, int parity, int lane) {
    if (__all_sync(~0u, ptx::mbarrier_test(free, static_cast<uint32_t>(parity)))) return;
    report<0>(lane);
    ptx::mbarrier_wait(free, parity);
  }
};

// Boxes of a pair of tiles: a lane has the page number of each. The first warp loads a tile of one
// page; where there are more, each warp loads one.
struct BoxedPair {
  const MlaDecodeParams& p;
  const MlaDecodeMaps& maps;
  const int32_t* list;
  int page_of_lane, next_page;

  __device__ __forceinline__ int pages_per_tile() const {
    return p.page.size < kMlaTileTokens ? kMlaTileTokens / p.page.size : 1;
  }
  __device__ __forceinline__ int read_page(const Item& item, int tile, int lane) const {
    const int token = p.page.size < kMlaTileTokens ? tile * kMlaTileTokens + lane * p.page.size
                                                   : (tile + lane) * kMlaTileTokens;
    const bool wanted = lane < 2 * pages_per_tile() && token < item.length &&
                        token < item.end_tile * kMlaTileTokens;
    return wanted ? list[token / p.page.size] : 0;
  }
  __device__ __forceinline__ void start(const Item& item, int lane) {
    list = page_list(p, item.request);
    next_page = read_page(item, item.first_tile, lane);
  }
  __device__ __forceinline__ void next(const Item& item, int tile, int lane) {
    page_of_lane = next_page;
    next_page = read_page(item, tile + 2, lane);
  }

  template <int kFrom, int kTo>
  __device__ __forceinline__ void load(const Place& place, const Item& item, int tile, bool odd,
                                       uint32_t memory, uint32_t full) const {
    if (p.page.size >= kMlaTileTokens) {
      const int page = __shfl_sync(~0u, page_of_lane, odd);
      if (place.lane != 0) return;
      const int row = tile * kMlaTileTokens % p.page.size;
#pragma unroll
      for (int c = kFrom; c < kTo; ++c) {
        ptx::mbarrier_arrive_expect(full + c * 8, kSubBytes);
        load_box(memory, full, c, row, page);
      }
      return;
    }
    const int pages = pages_per_tile();
    const int left = (item.length - tile * kMlaTileTokens + p.page.size - 1) / p.page.size;
    const int used = min(pages, left);
    const uint32_t bytes = static_cast<uint32_t>(p.page.size) * 128;
    if (place.lane == 0 && place.warp == 0) {
#pragma unroll
      for (int c = kFrom; c < kTo; ++c)
        ptx::mbarrier_arrive_expect(full + c * 8, static_cast<int>(bytes) * used);
    }
    const int page = __shfl_sync(~0u, page_of_lane, (odd ? pages : 0) + place.warp);
    if (place.lane != 0 || place.warp >= used) return;
#pragma unroll
    for (int c = kFrom; c < kTo; ++c) {
      load_box(memory + static_cast<uint32_t>(place.warp) * bytes, full, c, 0, page);
    }
  }

 private:
  __device__ __forceinline__ void load_box(uint32_t memory, uint32_t full, int c, int row,
                                           int page) const {
    const bool rope = c == kRopeSubTile;
    ptx::tma_load_4d(memory + c * kSubBytes, rope ? &maps.kpe : &maps.ckv, full + c * 8, 0, row,
                     rope ? 0 : c, page, ptx::kEvictFirst);
  }
};

// Rows of a pair of tiles, copied by four warps. A warp has 16 rows of a tile: lane i has the
// address of row i of the even tile, lane 16 + i that of the odd tile. An instruction copies 128
// bytes of four rows.
struct CopiedPair {
  const MlaDecodeParams& p;
  const int32_t* list;
  int next_page;
  const char *latent, *rope;

  __device__ __forceinline__ int token_of(const Place& place, int tile) const {
    return (tile + (place.lane >> 4)) * kMlaTileTokens + place.warp * 16 + (place.lane & 15);
  }
  __device__ __forceinline__ int read_page(const Place& place, const Item& item, int tile) const {
    const int token = token_of(place, tile);
    const bool wanted = token < item.length && token < item.end_tile * kMlaTileTokens;
    return wanted ? list[token / p.page.size] : 0;
  }
  __device__ __forceinline__ void start(const Place& place, const Item& item) {
    list = page_list(p, item.request);
    next_page = read_page(place, item, item.first_tile);
  }
  __device__ __forceinline__ void next(const Place& place, const Item& item, int tile) {
    const int row = token_of(place, tile) % p.page.size;
    latent = p.ckv.data + next_page * p.ckv.page_stride + row * p.ckv.row_stride;
    rope = p.kpe.data + next_page * p.kpe.page_stride + row * p.kpe.row_stride;
    next_page = read_page(place, item, tile + 2);
  }

  static __device__ __forceinline__ const char* of_lane(const char* address, int lane) {
    return reinterpret_cast<const char*>(
        __shfl_sync(~0u, reinterpret_cast<uint64_t>(address), lane));
  }

  // Rows of the tile that are part of the request.
  template <int kFrom>
  __device__ __forceinline__ void load(const Place& place, const Item& item, int tile, bool odd,
                                       uint32_t memory) const {
    const int rows = item.length - tile * kMlaTileTokens - place.warp * 16;
    const int lane_row = place.lane >> 3, lane_bytes = (place.lane & 7) * 16;
    // The swizzle repeats every 8 rows: that of rows 4 further is the same with one bit flipped.
    uint32_t at = memory + static_cast<uint32_t>(place.warp) * 16 * 128 +
                  swizzled(static_cast<uint32_t>(lane_row), static_cast<uint32_t>(place.lane & 7));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 4 + lane_row;
      const int of = (odd ? 16 : 0) + row;
      const char* const from = of_lane(latent, of) + kFrom * 128 + lane_bytes;
      const uint32_t to = (at + static_cast<uint32_t>(i) * 4 * 128) ^ ((i & 1) != 0 ? 64u : 0u);
      const char* const from_rope = kFrom != 0 ? of_lane(rope, of) + lane_bytes : nullptr;
      if (row >= rows) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        ptx::copy_async_16(to + (kFrom + c) * kSubBytes, from + c * 128);
      }
      if constexpr (kFrom != 0) ptx::copy_async_16(to + kRopeSubTile * kSubBytes, from_rope);
    }
  }
};

// Queries as kNope sub-tiles and, behind them, that of RoPE.
template <int kNope>
__device__ __forceinline__ void load_q_boxes(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                             const Place& place, const Item& item) {
  const uint32_t q = place.shared + kQ, full = place.shared + kFullQ;
  const RowBox box = row_box(p, p.q_access, item.request);
  ptx::mbarrier_arrive_expect(full, (kNope + 1) * kSubBytes);
  ptx::tma_load_4d(q, &maps.q_nope, full, 0, box.x, box.y, 0, ptx::kEvictNormal);
  ptx::tma_load_4d(q + kNope * kSubBytes, &maps.q_pe, full, 0, box.x, box.y, 0, ptx::kEvictNormal);
}

// Rows behind the request's last stay as they are: they reach no output.
template <int kNope>
__device__ __forceinline__ void copy_q_rows(const MlaDecodeParams& p, const Place& place,
                                            const Item& item) {
  const Tokens tokens = tokens_of(p, item.request);
  const uint32_t q = place.shared + kQ;
  const uint32_t sub_tile = static_cast<uint32_t>(place.lane >> 3);
  const uint32_t chunk = static_cast<uint32_t>(place.lane & 7);
  for (int i = place.warp - 1; i < kMlaTileRows; i += kQueryWarps) {
    const int row = static_cast<int>(blockIdx.x) * kMlaTileRows + i;
    if (row >= tokens.count * p.heads) return;
    const int token = tokens.first + row / p.heads, head = row % p.heads;
    const char* const nope =
        p.q_nope.data + token * p.q_nope.token_stride + head * p.q_nope.head_stride;
    const uint32_t at = q + sub_tile * kSubBytes + swizzled(static_cast<uint32_t>(i), chunk);
    ptx::copy_async_16(at, nope + place.lane * 16);
    if (place.lane < (kNope - 4) * 8) {
      ptx::copy_async_16(at + 4 * kSubBytes, nope + 512 + place.lane * 16);
    }
    if (place.lane < 8) {
      const char* const pe = p.q_pe.data + token * p.q_pe.token_stride + head * p.q_pe.head_stride;
      ptx::copy_async_16(at + kNope * kSubBytes, pe + place.lane * 16);
    }
  }
}

// Loads a pair of tiles, or an item's last one, in the order in which memory becomes free. `first`:
// of the item. Parities of the barriers for free memory start with 1: all is free at first.
template <class WaitFree, class LoadLeft, class LoadRight>
__device__ __forceinline__ void load_pair(bool first, bool has_odd, int free_stage, int& free_even,
                                          int& free_odd, const WaitFree& wait_free,
                                          const LoadLeft& load_left, const LoadRight& load_right) {
  wait_free(kFreeEvenLeft, free_even);
  load_left(false);
  if (first) {  // the consumers start with all of the even tile
    // Once an item, and before all of its data: else the consumers could free the stage twice
    // between two waits, and the parity of its phase would say nothing.
    if (!has_odd) wait_free(kFreeStage, free_stage);
    wait_free(kFreeEvenRight, free_even);
    load_right(false);
  }
  if (has_odd) {
    if (first) wait_free(kFreeStage, free_stage);
    wait_free(kFreeOddRight, free_odd);
    load_right(true);
  }
  if (!first) {
    wait_free(kFreeEvenRight, free_even);
    load_right(false);
  }
  if (has_odd) {
    wait_free(kFreeOddLeft, free_odd);
    load_left(true);
    free_odd ^= 1;
  }
  free_even ^= 1;
}

// Loads of one warp.
template <bool kBoxed, bool kRecords>
__device__ __forceinline__ void produce(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                        const Place& place, const Recorder<kRecords>& record) {
  const uint32_t even = place.shared + kEven, odd = place.shared + kOdd;
  const uint32_t full_even = place.shared + kFullEven, full_odd = place.shared + kFullOdd;
  const bool loads_cache = !kBoxed || place.warp == 0 || p.page.size < kMlaTileTokens;
  BoxedPair boxes = {p, maps};
  CopiedPair rows = {p};
  Copies copies;
  int free_even = 1, free_odd = 1, free_q = 1, free_stage = 1;
  Walk walk(p);
  Item item;

  const auto wait_free = [&](uint32_t barrier, int parity) {
    record.begin(FASTNORM_PROFILE_WAIT_FREE);
    if constexpr (kBoxed) {
      ptx::mbarrier_wait(place.shared + barrier, parity);
    } else {
      copies.wait_free(place.shared + barrier, parity, place.lane);
    }
    record.end(FASTNORM_PROFILE_WAIT_FREE);
  };
  // The left or the right half of a tile.
  const auto load = [&](auto right, int tile, bool is_odd) {
    constexpr int kFrom = right ? 4 : 0, kTo = right ? 9 : 4;
    record.begin(FASTNORM_PROFILE_LOAD_KV, tile);
    const uint32_t memory = is_odd ? odd : even, full = is_odd ? full_odd : full_even;
    if constexpr (kBoxed) {
      boxes.load<kFrom, kTo>(place, item, tile, is_odd, memory, full);
    } else {
      rows.load<kFrom>(place, item, tile, is_odd, memory);
      copies.follow(full + kFrom * 8, kTo - kFrom, place.lane);
    }
    record.end(FASTNORM_PROFILE_LOAD_KV, tile);
  };

  while (walk.next(p, item)) {
    if (!item.has_rows || item.first_tile >= item.end_tile) continue;  // no tiles are wanted
    if (loads_cache) {
      if constexpr (kBoxed) {
        boxes.start(item, place.lane);
      } else {
        rows.start(place, item);
      }
    }
    if (p.q_access == RowAccess::kRows) {
      if (place.warp != 0) {
        copies.wait_free(place.shared + kFreeQ, free_q, place.lane);
        copy_q_rows<kRopeSubTile>(p, place, item);
        copies.follow(place.shared + kFullQ, 1, place.lane);
        if (kBoxed) copies.report<0>(place.lane);
      }
    } else if (place.warp == 0) {
      wait_free(kFreeQ, free_q);
      record.begin(FASTNORM_PROFILE_LOAD_Q, item.request);
      if (place.lane == 0) load_q_boxes<kRopeSubTile>(p, maps, place, item);
      record.end(FASTNORM_PROFILE_LOAD_Q, item.request);
    }
    free_q ^= 1;
    if (!loads_cache) continue;
    for (int tile = item.first_tile; tile < item.end_tile; tile += 2) {
      if constexpr (kBoxed) {
        boxes.next(item, tile, place.lane);
      } else {
        rows.next(place, item, tile);
      }
      load_pair(
          tile == item.first_tile, tile + 1 < item.end_tile, free_stage, free_even, free_odd,
          wait_free, [&](bool is_odd) { load(std::false_type(), tile + is_odd, is_odd); },
          [&](bool is_odd) { load(std::true_type(), tile + is_odd, is_odd); });
    }
    free_stage ^= 1;
  }
  copies.report<0>(place.lane);
}

// Sub-tiles [kFrom, kTo) of a tile in one page.
template <int kFrom, int kTo>
__device__ __forceinline__ void load_page_half(const MlaDecodeMaps& maps, uint32_t memory,
                                               uint32_t full, int page, int row) {
#pragma unroll
  for (int c = kFrom; c < kTo; ++c) {
    ptx::mbarrier_arrive_expect(full + c * 8, kSubBytes);
    const bool rope = c == kRopeSubTile;
    ptx::tma_load_4d(memory + c * kSubBytes, rope ? &maps.kpe : &maps.ckv, full + c * 8, 0, row,
                     rope ? 0 : c, page, ptx::kEvictFirst);
  }
}

// All loads by one thread: pages of 64 tokens or a multiple, boxes for queries.
template <bool kRecords>
__device__ __forceinline__ void produce_pages(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                              const Place& place,
                                              const Recorder<kRecords>& record) {
  const uint32_t even = place.shared + kEven, odd = place.shared + kOdd;
  const uint32_t full_even = place.shared + kFullEven, full_odd = place.shared + kFullOdd;
  int free_even = 1, free_odd = 1, free_item = 1;
  const auto wait_free = [&](uint32_t barrier, int parity) {
    record.begin(FASTNORM_PROFILE_WAIT_FREE);
    ptx::mbarrier_wait(place.shared + barrier, parity);
    record.end(FASTNORM_PROFILE_WAIT_FREE);
  };
  // The row of a page behind a tile, where the next tile begins. There is no division in the loop.
  const auto behind = [&](int of) {
    return of + kMlaTileTokens == p.page.size ? 0 : of + kMlaTileTokens;
  };
  Walk walk(p);
  Item item;
  while (walk.next(p, item)) {
    int tile = item.first_tile;
    const int end = item.end_tile;
    if (!item.has_rows || tile >= end) continue;  // no tiles are wanted
    // Where in its page the even tile begins, and the list's entry of the last tile looked up.
    int row = tile * kMlaTileTokens % p.page.size;
    const int32_t* entry = page_list(p, item.request) + tile * kMlaTileTokens / p.page.size;
    int even_page = *entry, odd_page = 0;
    int odd_row = behind(row);
    if (odd_row == 0) ++entry;
    if (tile + 1 < end) odd_page = *entry;
    const auto load = [&](auto right, bool is_odd) {
      load_page_half<right ? 4 : 0, right ? 9 : 4>(
          maps, is_odd ? odd : even, is_odd ? full_odd : full_even, is_odd ? odd_page : even_page,
          is_odd ? odd_row : row);
    };
    wait_free(kFreeQ, free_item);
    load_q_boxes<kRopeSubTile>(p, maps, place, item);
    for (bool first = true; tile < end; tile += 2, first = false) {
      const int next_row = behind(odd_row), next_odd_row = behind(next_row);
      int next_even = 0, next_odd = 0;
      if (next_row == 0) ++entry;
      if (tile + 2 < end) next_even = *entry;
      if (next_odd_row == 0) ++entry;
      if (tile + 3 < end) next_odd = *entry;
      load_pair(
          first, tile + 1 < end, free_item, free_even, free_odd, wait_free,
          [&](bool is_odd) { load(std::false_type(), is_odd); },
          [&](bool is_odd) { load(std::true_type(), is_odd); });
      even_page = next_even;
      odd_page = next_odd;
      row = next_row;
      odd_row = next_odd_row;
    }
    free_item ^= 1;
  }
}

}  // namespace fastnorm::cuda::mla
