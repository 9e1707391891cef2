// The warpgroups that load for calls whose tiles are not boxes of 16-bit numbers: rows of FP8
// caches, and rows that indices select. A warp has eight rows of each tile. It writes them to
// shared memory as numbers of T, in the layout that boxes have, and beside them which of the rows
// count: a row that is behind the request's last or has the index -1 is zeros there, and its scores
// are masked.
//
// FP8 rows pass through registers. A whole tile of them is on its way while the tile before it is
// multiplied. It is converted in halves as memory for them is free, the columns of RoPE with the
// left one. Then the same registers are loaded with the tile behind it.
#pragma once

#include "cuda/common/ptx/convert.cuh"
#include "cuda/common/ptx/memory.cuh"
#include "cuda/mla_decode/gather_tile.cuh"
#include "cuda/mla_decode/producer.cuh"

namespace fastnorm::cuda::mla {

// Of a number that is not negative.
__device__ __forceinline__ int pages_before(const PageSize& page, int row) {
  const uint64_t product = static_cast<uint64_t>(static_cast<uint32_t>(row)) * page.factor;
  return static_cast<int>(product >> page.shift);
}

// Where a row of the cache is. A row that does not count has no codes.
struct RowPlace {
  const char* codes;   // or the latent
  const char* scales;  // or the RoPE part of rows of T
};

// The rows of an item's tiles: what a lane knows of its row of the next tile. Lane i knows row
// i % 8 of the warp's.
template <MlaCacheFormat kFormat>
struct RowList {
  const MlaDecodeParams& p;
  const int32_t* list;        // pages, or the first indices
  const int32_t* extra_list;  // the second ones
  int first_end, extra_begin, end;
  int entry;  // of `list` or `extra_list`, for the next tile; -1: the row does not count

  __device__ __forceinline__ static int slot_of(const Place& place, int tile) {
    return tile * kMlaTileTokens + place.warp * kWarpRows + (place.lane & (kWarpRows - 1));
  }
  __device__ __forceinline__ const int32_t* indices_of(const MlaDecodeSelection& s,
                                                       int request) const {
    const int64_t outer = request / p.selected_s_q, inner = request % p.selected_s_q;
    return s.indices + outer * s.outer + inner * s.inner;
  }

  __device__ __forceinline__ void start(const Place& place, const Item& item) {
    if (p.sparse != 0) {
      const Slots slots(p, item.request);
      first_end = slots.first_end;
      extra_begin = slots.extra_begin;
      end = slots.end;
      list = indices_of(p.selection, item.request);
      if (p.has_extra != 0) extra_list = indices_of(p.extra.selection, item.request);
    } else {
      first_end = extra_begin = end = item.length;
      list = page_list(p, item.request);
    }
    entry = look_up(place, item, item.first_tile);
  }
  __device__ __forceinline__ int look_up(const Place& place, const Item& item, int tile) const {
    const int slot = slot_of(place, tile);
    if (tile < item.end_tile && slot < first_end) {
      return __ldg(list + (p.sparse != 0 ? slot : pages_before(p.page, slot)));
    }
    if (tile < item.end_tile && slot >= extra_begin && slot < end) {
      return __ldg(extra_list + (slot - extra_begin));
    }
    return -1;
  }
  // The row of a tile, behind start() or the tile before.
  __device__ __forceinline__ RowPlace next(const Place& place, const Item& item, int tile) {
    const RowPlace row = place_of(place, tile);
    entry = look_up(place, item, tile + 1);
    return row;
  }

 private:
  __device__ __forceinline__ RowPlace place_of(const Place& place, int tile) const {
    if (entry < 0) return {nullptr, nullptr};
    const int slot = slot_of(place, tile);
    if (p.sparse == 0) {
      return row_of(p.ckv, p.kpe, p.page, entry, slot - pages_before(p.page, slot) * p.page.size);
    }
    const bool first = slot < first_end;
    const PageSize& sizes = first ? p.page : p.extra.page;
    const int page = pages_before(sizes, entry);
    return row_of(first ? p.ckv : p.extra.ckv, first ? p.kpe : p.extra.kpe, sizes, page,
                  entry - page * sizes.size);
  }
  static __device__ __forceinline__ RowPlace row_of(const PageRows& rows, const PageRows& rope,
                                                    const PageSize& sizes, int page, int row) {
    const char* const start = rows.data + page * rows.page_stride;
    if constexpr (kFormat == MlaCacheFormat::kFp8Pages) {
      return {start + static_cast<int64_t>(row) * kPagedBytes,
              start + static_cast<int64_t>(sizes.size) * kPagedBytes + row * 8};
    }
    const char* const codes = start + row * rows.row_stride;
    if constexpr (kFormat == MlaCacheFormat::kRows) {
      return {codes, rope.data + page * rope.page_stride + row * rope.row_stride};
    }
    return {codes, codes + kMlaLatent};
  }
};

// A warp's rows as bits.
__device__ __forceinline__ uint32_t rows_that_count(bool counts) {
  return __ballot_sync(~0u, counts) & ((1u << kWarpRows) - 1);
}

__device__ __forceinline__ const char* address_of_lane(const char* address, int lane) {
  return reinterpret_cast<const char*>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(address), lane));
}

// Rows of T: copied, a row that does not count as zeros.
template <Dtype kDtype, MlaCacheFormat kFormat>
struct GatheredTiles {
  RowList<kFormat> rows;
  Copies copies;

  __device__ __forceinline__ explicit GatheredTiles(const MlaDecodeParams& p) : rows{p} {}

  __device__ __forceinline__ void start(const Place& place, const Item& item) {
    rows.start(place, item);
  }
  // Waits for memory of a tile's half or of Q. The last tile before it may be on its way. It is
  // reported first: Q is not free before its scores are there.
  __device__ __forceinline__ void wait_free(const Place& place, uint32_t barrier, int parity) {
    copies.wait_free(place.shared + barrier, parity, place.lane);
  }
  __device__ __forceinline__ void fill(const Place& place, const Item& item, int tile,
                                       uint32_t buffer, int parity) {
    const RowPlace row = rows.next(place, item, tile);
    wait_free(place, free_half(buffer, 0), parity);
    wait_free(place, free_half(buffer, 1), parity);
    store_counts(place, buffer, rows_that_count(row.codes != nullptr));
    const uint32_t memory = place.shared + kEven + buffer * kTileBytes;
    const int lane_row = place.lane >> 3, lane_bytes = (place.lane & 7) * 16;
    const uint32_t at =
        memory + static_cast<uint32_t>(place.warp) * kWarpRows * 128 +
        swizzled(static_cast<uint32_t>(lane_row), static_cast<uint32_t>(place.lane & 7));
#pragma unroll
    for (int i = 0; i < kWarpRows / 4; ++i) {
      const char* const latent = address_of_lane(row.codes, i * 4 + lane_row);
      const char* const rope = address_of_lane(row.scales, i * 4 + lane_row);
      const bool counts = latent != nullptr;
      // Where nothing is copied the address is one that exists.
      const char* const from = counts ? latent + lane_bytes : rows.p.ckv.data;
      const char* const from_rope = counts ? rope + lane_bytes : rows.p.ckv.data;
      const uint32_t to = (at + static_cast<uint32_t>(i) * 4 * 128) ^ ((i & 1) != 0 ? 64u : 0u);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        ptx::copy_async_or_zero_16(to + c * kSubBytes, counts ? from + c * 128 : from, counts);
      }
      ptx::copy_async_or_zero_16(to + 8 * kSubBytes, from_rope, counts);
    }
    copies.follow(place.shared + full_half(buffer, 0), 2, place.lane);
  }
  __device__ __forceinline__ void finish(const Place& place) {
    copies.template report<0>(place.lane);
  }
};

// Two codes in the low half of a word, times a scale, as a pair of T.
template <Dtype kDtype>
__device__ __forceinline__ uint32_t from_codes(uint32_t codes, float scale) {
  const float2 v = ptx::from_e4m3x2(codes);
  return pack<kDtype>(v.x * scale, v.y * scale);
}

// Two numbers of bf16 as a pair of T.
template <Dtype kDtype>
__device__ __forceinline__ uint32_t from_bf16(uint32_t pair) {
  if constexpr (kDtype == Dtype::kBF16) return pair;
  return pack<kDtype>(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// Sixteen codes as two chunks of eight numbers.
template <Dtype kDtype>
__device__ __forceinline__ void store_codes(uint32_t at, const uint4& codes, float scale) {
  ptx::store_shared_v4(at, from_codes<kDtype>(codes.x, scale),
                       from_codes<kDtype>(codes.x >> 16, scale), from_codes<kDtype>(codes.y, scale),
                       from_codes<kDtype>(codes.y >> 16, scale));
  ptx::store_shared_v4(at ^ 16, from_codes<kDtype>(codes.z, scale),
                       from_codes<kDtype>(codes.z >> 16, scale), from_codes<kDtype>(codes.w, scale),
                       from_codes<kDtype>(codes.w >> 16, scale));
}

// Rows of FP8 formats. Of the latent a lane has sixteen codes of each half of one of two rows: its
// bits 0 and 1 choose a quarter of 64 columns, bit 2 the row, and bits 3 and 4 the 64 columns. So
// eight lanes that store together write to all banks: neighbouring rows lie in each other's chunks.
// Scales are loaded by the lanes that know the row.
template <Dtype kDtype, MlaCacheFormat kFormat>
requires(kFormat != MlaCacheFormat::kRows) struct GatheredTiles<kDtype, kFormat> {
  static constexpr int kPairs = kWarpRows / 2;
  static constexpr int kHalves = 2;
  static constexpr bool kRopeIsCodes = kFormat == MlaCacheFormat::kFp8Tensor;
  static constexpr int kRopeLoads = kWarpRows / (kRopeIsCodes ? 8 : 4);  // of all rows
  static constexpr int kRopeSubTileOf = kFormat == MlaCacheFormat::kFp8Pages ? 7 : 8;
  static constexpr int kRopeHalf = kRopeSubTileOf == 7 ? 1 : 0;
  static constexpr int kRopeBytes = kFormat == MlaCacheFormat::kFp8Blocks  ? kMlaLatent + 16
                                    : kFormat == MlaCacheFormat::kFp8Pages ? kMlaLatent - kMlaRope
                                                                           : kMlaLatent;

  RowList<kFormat> rows;
  float tensor_scale;
  uint4 codes[kPairs][kHalves];
  // Lane i has those of row i % 8. kFp8Blocks: of each half the first block, lanes from 16 on the
  // second. kFp8Pages: the exponents of a half's four blocks.
  uint32_t scales[kHalves];
  uint4 rope[kRopeLoads];
  uint32_t counts;

  __device__ __forceinline__ explicit GatheredTiles(const MlaDecodeParams& p) : rows{p} {
    tensor_scale = p.cache_scale != nullptr ? __ldg(p.cache_scale) : 1.0f;
  }

  static __device__ __forceinline__ int sub_tile_of(const Place& place, int half) {
    return half * 4 + (place.lane >> 3);
  }
  // Whether a lane has no codes there, but the columns of RoPE are.
  static __device__ __forceinline__ bool is_rope(int sub_tile) {
    return kFormat == MlaCacheFormat::kFp8Pages && sub_tile == kRopeSubTileOf;
  }
  static __device__ __forceinline__ int row_of_pair(const Place& place, int pair) {
    return 2 * pair + (place.lane >> 2 & 1);
  }

  __device__ __forceinline__ void load_scales(const Place& place, const RowPlace& row) {
    scales[0] = scales[1] = 0;
    if (kFormat == MlaCacheFormat::kFp8Tensor || row.codes == nullptr) return;
    if constexpr (kFormat == MlaCacheFormat::kFp8Blocks) {
      const auto* const of_row = reinterpret_cast<const uint32_t*>(row.scales) + (place.lane >> 4);
      scales[0] = __ldg(of_row);
      scales[1] = __ldg(of_row + 2);
    } else {
      const uint2 exponents = __ldg(reinterpret_cast<const uint2*>(row.scales));
      scales[0] = exponents.x;
      scales[1] = exponents.y;
    }
  }
  __device__ __forceinline__ void load_pair(const Place& place, const RowPlace& row, int pair) {
    const char* const codes_of = address_of_lane(row.codes, row_of_pair(place, pair));
    const char* const from = codes_of + (place.lane >> 3) * 64 + (place.lane & 3) * 16;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      uint4& v = codes[pair][half];
      v = make_uint4(0, 0, 0, 0);
      ptx::ld_global_cs_v4_if(v, from + half * 256,
                              codes_of != nullptr && !is_rope(sub_tile_of(place, half)));
    }
  }
  __device__ __forceinline__ void load_rope(const Place& place, const RowPlace& row, int i) {
    const int of = kRopeIsCodes ? i * 8 + (place.lane >> 2) : i * 4 + (place.lane >> 3);
    const int chunk = kRopeIsCodes ? place.lane & 3 : place.lane & 7;
    const char* const from = address_of_lane(row.codes, of);
    rope[i] = make_uint4(0, 0, 0, 0);
    ptx::ld_global_cs_v4_if(rope[i], from + kRopeBytes + chunk * 16, from != nullptr);
  }
  __device__ __forceinline__ void load(const Place& place, const RowPlace& row) {
    load_scales(place, row);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) load_pair(place, row, pair);
#pragma unroll
    for (int i = 0; i < kRopeLoads; ++i) load_rope(place, row, i);
    counts = rows_that_count(row.codes != nullptr);
  }

  __device__ __forceinline__ float scale_of(const Place& place, int pair, int half) const {
    if constexpr (kFormat == MlaCacheFormat::kFp8Tensor) return tensor_scale;
    const int row = row_of_pair(place, pair);
    if constexpr (kFormat == MlaCacheFormat::kFp8Blocks) {
      return __uint_as_float(__shfl_sync(~0u, scales[half], row + (place.lane & 16)));
    }
    // 2^(byte - 127): 0 is the subnormal 2^-127, 255 is NaN.
    const uint32_t word = __shfl_sync(~0u, scales[half], row);
    const uint32_t exponent = word >> (place.lane >> 3) * 8 & 0xff;
    const uint32_t bits = exponent == 0 ? 0x00400000u : exponent << 23;
    return __uint_as_float(exponent == 255 ? 0x7fffffffu : bits);
  }
  __device__ __forceinline__ void store_half(const Place& place, uint32_t memory, int half) const {
    // swizzled() of row 2 * pair + bit 2 of the lane and of the lane's first chunk.
    const auto lane = static_cast<uint32_t>(place.lane), bit = lane >> 2 & 1;
    const uint32_t at = memory + static_cast<uint32_t>(place.warp) * kWarpRows * 128 +
                        (lane >> 3) * kSubBytes + bit * 128 + (2 * (lane & 3) ^ bit) * 16 +
                        static_cast<uint32_t>(half) * 4 * kSubBytes;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const float scale = scale_of(place, pair, half);
      const auto number = static_cast<uint32_t>(pair);
      if (is_rope(sub_tile_of(place, half))) continue;
      store_codes<kDtype>((at ^ number * 32) + number * 256, codes[pair][half], scale);
    }
  }
  __device__ __forceinline__ void store_rope(const Place& place, uint32_t memory) const {
    const uint32_t lane = static_cast<uint32_t>(place.lane);
    const uint32_t first = static_cast<uint32_t>(place.warp * kWarpRows);
    const uint32_t sub_tile = memory + kRopeSubTileOf * kSubBytes;
    if constexpr (kRopeIsCodes) {
      store_codes<kDtype>(sub_tile + swizzled(first + (lane >> 2), 2 * (lane & 3)), rope[0],
                          tensor_scale);
    } else {
      const uint32_t at = sub_tile + swizzled(first + (lane >> 3), lane & 7);
#pragma unroll
      for (uint32_t i = 0; i < kRopeLoads; ++i) {
        ptx::store_shared_v4((at ^ i * 64) + i * 512, from_bf16<kDtype>(rope[i].x),
                             from_bf16<kDtype>(rope[i].y), from_bf16<kDtype>(rope[i].z),
                             from_bf16<kDtype>(rope[i].w));
      }
    }
  }

  __device__ __forceinline__ void start(const Place& place, const Item& item) {
    rows.start(place, item);
    load(place, rows.next(place, item, item.first_tile));
  }
  __device__ __forceinline__ void wait_free(const Place& place, uint32_t barrier, int parity) {
    ptx::mbarrier_wait(place.shared + barrier, parity);
  }

  // Stores a tile, and loads the next one of the item behind all stores.
  __device__ __forceinline__ void fill(const Place& place, const Item& item, int tile,
                                       uint32_t buffer, int parity) {
    const uint32_t memory = place.shared + kEven + buffer * kTileBytes;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      wait_free(place, free_half(buffer, half), parity);
      if (half == 0) store_counts(place, buffer, counts);
      store_half(place, memory, half);
      if (half == kRopeHalf) store_rope(place, memory);
      ptx::fence_async_proxy();
      __syncwarp();
      if (place.lane == 0) ptx::mbarrier_arrive(place.shared + full_half(buffer, half));
    }
    if (tile + 1 < item.end_tile) load(place, rows.next(place, item, tile + 1));
  }
  __device__ __forceinline__ void finish(const Place&) {}
};

// Loads of one warp. Parities of the barriers for free memory start with 1: all is free at first.
template <Dtype kDtype, MlaCacheFormat kFormat>
__device__ __forceinline__ void gather(const MlaDecodeParams& p, const MlaDecodeMaps& maps,
                                       Place place) {
  place.warp += (place.group - 2) * kWarps;  // of both warpgroups
  constexpr int kNope = nope_sub_tiles(kFormat);
  GatheredTiles<kDtype, kFormat> tiles(p);
  Copies of_query;
  uint32_t buffer = 0;
  int free_q = 1, parity = 1;
  Walk walk(p);
  Item item;
  while (walk.next(p, item)) {
    if (!item.has_rows || item.first_tile >= item.end_tile) continue;  // no tiles are wanted
    tiles.start(place, item);
    if (p.q_access != RowAccess::kRows) {
      if (place.warp == 0) {
        tiles.wait_free(place, kFreeQ, free_q);
        if (place.lane == 0) load_q_boxes<kNope>(p, maps, place, item);
        __syncwarp();
      }
    } else if (place.warp != 0 && place.warp <= kQueryWarps) {
      tiles.wait_free(place, kFreeQ, free_q);
      copy_q_rows<kNope>(p, place, item);
      of_query.follow(place.shared + kFullQ, 1, place.lane);
      of_query.template report<0>(place.lane);
    }
    free_q ^= 1;
    for (int tile = item.first_tile; tile < item.end_tile; ++tile) {
      tiles.fill(place, item, tile, buffer, parity);
      buffer ^= 1;
      if (buffer == 0) parity ^= 1;
    }
  }
  tiles.finish(place);
}

}  // namespace fastnorm::cuda::mla
