// What a norm_heads call launches and reads and writes. Pure functions of their arguments.
#pragma once

#include <cstdint>
#include <span>

#include "core/error.h"
#include "core/norm_heads_desc.h"
#include "core/norm_plan.h"

namespace fastnorm {

// What a CUDA kernel of the family does.
enum class HeadsForm : uint8_t {
  kGeneral,  // every call
  // Aligned rows in registers. A few lanes hold each head:
  kLatent,  // MLA: RMS of latents without rope, with scales of blocks; short rows as kBeside
  kApart,   // RMS and NeoX rope of the whole row: both columns of a pair are in one lane
  kBeside,  // RMS and interleaved rope
  kAny,     // either statistic, either rope, any window: pairs meet in shared memory
  kMore,    // kAny, and sumsq, codes by division, and codes of y with a static scale.
  // A group of threads holds all heads of a token:
  kTokens,  // one statistic for them or no norm, and sumsq, as kAny
};

// One CUDA kernel as data.
struct NormHeadsVariant {
  Dtype dtype = Dtype::kF32;  // T
  HeadsForm form = HeadsForm::kGeneral;
  int16_t threads = 0;  // kGeneral, kTokens: of a block; otherwise lanes that share a head
  int8_t vectors = 0;   // 16-byte vectors of a head that a lane holds; kTokens: of a token
  int8_t per_sm = 1;    // thread blocks, for __launch_bounds__

  constexpr bool operator==(const NormHeadsVariant&) const = default;

  static constexpr int kHeldThreads = 128;  // of a block of all forms but kGeneral and kTokens
  constexpr bool is_held() const { return form != HeadsForm::kGeneral; }
  constexpr bool is_any() const { return form == HeadsForm::kAny || form == HeadsForm::kMore; }
  constexpr bool has_tokens() const { return form == HeadsForm::kTokens; }
  constexpr bool has_latents() const { return form == HeadsForm::kLatent; }
  constexpr int block_threads() const {
    return is_held() && !has_tokens() ? kHeldThreads : threads;
  }
  constexpr int groups() const { return block_threads() / threads; }  // of lanes in a block
};

// Its numbers in one word, which orders a table.
constexpr uint32_t packed(const NormHeadsVariant& v) {
  return static_cast<uint32_t>(v.dtype) << 27 | static_cast<uint32_t>(v.form) << 24 |
         static_cast<uint32_t>(v.threads) << 12 | static_cast<uint32_t>(v.vectors) << 6 |
         static_cast<uint32_t>(v.per_sm);
}
constexpr NormHeadsVariant heads_variant_of(uint32_t word) {
  return {static_cast<Dtype>(word >> 27), static_cast<HeadsForm>(word >> 24 & 7),
          static_cast<int16_t>(word >> 12 & 0xfff), static_cast<int8_t>(word >> 6 & 63),
          static_cast<int8_t>(word & 63)};
}

// How lanes hold the vectors of a head.
struct HeadsTile {
  int lanes, vectors;
  constexpr int groups() const { return NormHeadsVariant::kHeldThreads / lanes; }  // in a block
  constexpr int64_t room() const { return int64_t{lanes} * vectors; }
};

// That of rows of `vectors` vectors. kLatent holds short rows, such as rotary keys, in fewer lanes
// than latents.
constexpr HeadsTile tile_of(const NormHeadsVariant& v, int64_t vectors) {
  const HeadsTile whole = {v.threads, v.vectors};
  if (!v.has_latents() || vectors == whole.room()) return whole;
  return {v.threads / 2, 1};
}

// kAny: most columns of a head that can turn. A block has shared memory for these.
constexpr int held_rope_columns(const NormHeadsVariant& v) {
  constexpr int kMostFloats = 12 << 10;  // of a block: two for each column
  const int columns = v.threads * v.vectors * (v.dtype == Dtype::kF32 ? 4 : 8);
  return columns * v.groups() * 2 <= kMostFloats ? columns : columns / 2;
}

// kTokens: most pairs that turn, of all tokens of a block, which has shared memory for the angles.
inline constexpr int kTokenPairs = 1024;

struct NormHeadsEntry {
  NormHeadsVariant variant;
  uint32_t order = 0;  // packed(variant)
  char name[40] = "";  // unique in its table: "norm_heads bf16 apart 8x2"
};

// The general form: most columns of a head that a warp takes, and warps of a block.
inline constexpr int kWarpHeadColumns = 1024, kGeneralHeadsWarps = 8;

struct NormHeadsPlan {
  const char* kernel = "";  // "" = nothing to do
  int32_t launches = 0;
  int64_t grain = 1;    // CPU: tokens that justify another thread
  uint64_t blocks = 0;  // CUDA: of the grid; CPU: most ranges
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;

  // CUDA:
  const NormHeadsEntry* entry = nullptr;
  int32_t index = -1;  // of entry in the device's table
  // The blocks of each part are consecutive and start at `first_block`. The last value is the end.
  // The general form's blocks may take several parts.
  uint64_t first_block[kMaxHeadsParts + 1] = {};
  // Held forms: groups of lanes that share a token's heads. kTokens: groups of threads in a block,
  // each of which has a token.
  uint32_t groups[kMaxHeadsParts] = {};
};

// Whether heads of x, y, weight and bias are aligned to 16 bytes and multiples of them, and y is of
// x's dtype.
bool has_vector_heads(const NormHeadsDesc& desc, const NormHeadsPart& part);

// Plans on a kernel of `table`, the table of a CUDA device. Fails with FASTNORM_ERROR_UNSUPPORTED
// if no kernel supports the call.
fastnorm_status plan_norm_heads(const NormHeadsDesc& desc, const DeviceFacts& facts,
                                std::span<const NormHeadsEntry> table, NormHeadsPlan* plan,
                                Error& error);

// The same on a specific kernel of a CUDA device, for tests. FASTNORM_ERROR_UNSUPPORTED if it does
// not support the call.
fastnorm_status plan_norm_heads_for(const NormHeadsDesc& desc, const DeviceFacts& facts,
                                    std::span<const NormHeadsEntry> table, int32_t index,
                                    NormHeadsPlan* plan, Error& error);

}  // namespace fastnorm
