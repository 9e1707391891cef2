// Shared memory of the kernel that gathers rows: two tiles of the cache, each read by both
// consumers, in place of a tile for each. Its vectors and barriers lie where the other kernel has
// its own.
#pragma once

#include "core/mla_decode/desc.h"
#include "cuda/mla_decode/tile.cuh"

namespace fastnorm::cuda::mla {

// Bytes of a token in kFp8Pages without its scales, which lie behind all rows of the page.
inline constexpr int kPagedBytes = kMlaLatent - kMlaRope + 2 * kMlaRope;

// Sub-tiles of a row's columns before those of RoPE.
constexpr int nope_sub_tiles(MlaCacheFormat format) {
  return kMlaCacheLayouts[static_cast<int>(format)].nope / 64;
}

// Two warpgroups load and convert, so that each scheduler has two such warps to choose from.
inline constexpr int kGatherThreads = kConsumers + 2 * kGroup;
inline constexpr int kGatherWarps = 8;
inline constexpr int kWarpRows = kMlaTileTokens / kGatherWarps;  // of a tile

inline constexpr uint32_t kRowScale = kMaximum;      // [64] old to new maximum of the tile
inline constexpr uint32_t kRowMaximum = kEvenScale;  // [2][64] by parity of the item
inline constexpr uint32_t kRowSum = kEvenSum;        // [2][64] likewise
inline constexpr uint32_t kGrew = kEvenGrew;         // [4 warps] whether a maximum grew
inline constexpr uint32_t kCounts = kOddGrew;        // [2 tiles] of 64 bits: rows that count
inline constexpr uint32_t kFull = kFullEven;         // [2 tiles][2 halves]
inline constexpr uint32_t kFree = kFreeEvenLeft;     // [2 tiles][2 halves]
static_assert(kRowMaximum + 512 == kEvenSum && kRowSum + 512 == kEvenGrew);

// Barriers of a tile's halves: sub-tiles 0..3 and 8, and 4..7.
constexpr uint32_t full_half(uint32_t buffer, uint32_t half) {
  return kFull + buffer * 16 + half * 8;
}
constexpr uint32_t free_half(uint32_t buffer, uint32_t half) {
  return kFree + buffer * 16 + half * 8;
}

// Named barriers of both consumers: P and the factors of a tile are in shared memory, and the
// tensor cores are free for it; they have been read.
inline constexpr int kStoredP = kEvenScaled, kReadP = kOddScaled;

// Which of a warp's rows of a tile count: a byte.
__device__ __forceinline__ void store_counts(const Place& place, uint32_t buffer, uint32_t counts) {
  static_assert(kWarpRows == 8);
  if (place.lane != 0) return;
  ptx::store_shared_u8(place.shared + kCounts + buffer * 8 + static_cast<uint32_t>(place.warp),
                       counts);
}

}  // namespace fastnorm::cuda::mla
