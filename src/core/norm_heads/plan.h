// What a norm_heads call launches and reads and writes. Pure functions of their arguments.
#pragma once

#include <cstdint>
#include <span>

#include "core/common/error.h"
#include "core/common/word.h"
#include "core/norm/plan.h"
#include "core/norm_heads/desc.h"

namespace fastnorm {

// What a CUDA kernel of the family does, with the form's word in kernel names and in
// docs/kernels.md. choose() in plan.cpp prefers forms in the order of these values, except that it
// tries kIndexerLean and kIndexer first and kGeneral last. All forms but kGeneral hold aligned rows
// in registers.
enum class HeadsForm : uint8_t {
  kGeneral,  // "general": every call
  // "latent": A few lanes hold a latent of MLA, which fills the tile and has RMS and no rope. Other
  // parts of the call may have short rows, as in kInterleaved, or long latents of queries, which
  // may have codes of y.
  kLatent,
  // "rotate-half", "interleaved": RMS and this rope, kRotateHalf with all columns rotated. One lane
  // has both columns of a pair.
  kRotateHalf,
  kInterleaved,
  kAny,   // "any": both statistics and ropes; the columns of a pair meet in shared memory
  kMore,  // "more": as kAny, and sumsq, codes by division, codes of y with a static scale
  // "tokens": A group of threads holds all heads of a token, which share a statistic or have no
  // norm. Otherwise as kAny, and sumsq.
  kTokens,
  // "indexer": As kAny, for rows that fill the tile and have codes with one scale; with rotation
  // and head weights.
  kIndexer,
  // "indexer-lean": The common call of kIndexer, as cuda/norm_heads/indexer_lean.cuh has it.
  kIndexerLean,
};

// One CUDA kernel as data: a line of cuda/norm_heads/variants.inc for one dtype and architecture.
struct NormHeadsVariant {
  Dtype dtype = Dtype::kF32;  // T
  HeadsForm form = HeadsForm::kGeneral;
  int16_t threads = 0;  // kGeneral, kTokens: of a block; otherwise lanes that share a head
  int8_t vectors = 0;   // 16-byte vectors of a head that a lane holds; kTokens: of a token
  // Thread blocks of a multiprocessor. __launch_bounds__ limits registers by it, and groups_of() in
  // plan.cpp counts with it how many threads a GPU holds at once.
  int8_t per_sm = 1;

  constexpr bool operator==(const NormHeadsVariant&) const = default;

  static constexpr int kHeldThreads = 128;  // of a block of all forms but kGeneral and kTokens
  constexpr bool is_held() const { return form != HeadsForm::kGeneral; }
  constexpr bool is_any() const { return form == HeadsForm::kAny || form == HeadsForm::kMore; }
  constexpr bool has_tokens() const { return form == HeadsForm::kTokens; }
  constexpr bool has_latents() const { return form == HeadsForm::kLatent; }
  constexpr bool is_lean_indexer() const { return form == HeadsForm::kIndexerLean; }
  constexpr bool is_indexer() const { return form == HeadsForm::kIndexer || is_lean_indexer(); }
  constexpr int block_threads() const {
    return is_held() && !has_tokens() ? kHeldThreads : threads;
  }
  constexpr int groups() const { return block_threads() / threads; }  // of lanes in a block

  // In its word.
  static constexpr void numbers(auto& v, auto use) {
    use(v.dtype, 2), use(v.form, 4), use(v.threads, 12), use(v.vectors, 6), use(v.per_sm, 6);
  }
};

// Its word, and back. NormHeadsFamily in cuda/norm_heads/list.h knows the 6 bits of per_sm: no two
// kernels may differ in them alone.
constexpr uint32_t packed(const NormHeadsVariant& v) { return packed_word<uint32_t>(v); }
constexpr NormHeadsVariant heads_variant_of(uint32_t word) {
  return variant_in<NormHeadsVariant>(word);
}

// How lanes hold the vectors of a head.
struct HeadsTile {
  int lanes, vectors;
  constexpr int groups() const { return NormHeadsVariant::kHeldThreads / lanes; }  // in a block
  constexpr int64_t room() const { return int64_t{lanes} * vectors; }
};

// That of rows of `vectors` vectors. kLatent holds short rows, such as rotary keys, in fewer lanes
// than latents, and long ones in two warps.
constexpr HeadsTile tile_of(const NormHeadsVariant& v, int64_t vectors) {
  const HeadsTile whole = {v.threads, v.vectors};
  if (!v.has_latents() || vectors == whole.room()) return whole;
  if (vectors > whole.room()) return {v.threads * 4, v.vectors};
  return {v.threads / 2, 1};
}

// kAny: most columns of a head that can rotate. A block has shared memory for these.
constexpr int held_rope_columns(const NormHeadsVariant& v) {
  constexpr int kMostFloats = 12 << 10;  // of a block: two for each column
  const int columns = v.threads * v.vectors * (v.dtype == Dtype::kF32 ? 4 : 8);
  return columns * v.groups() * 2 <= kMostFloats ? columns : columns / 2;
}

// kTokens: most pairs that rotate, of all tokens of a block, which has shared memory for their
// angles.
inline constexpr int kTokenPairs = 1024;

struct NormHeadsEntry {
  NormHeadsVariant variant;
  uint32_t order = 0;  // packed(variant)
  char name[40] = "";  // unique in its table: "norm_heads bf16 rotate-half 8x2"
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
  // For each part. Held forms but kTokens: the groups of lanes that share the heads of one token.
  // kTokens: the groups of threads of one block, each of which has a token.
  uint32_t groups[kMaxHeadsParts] = {};
};

// A described and planned call that launches something.
struct NormHeadsCall {
  const NormHeadsDesc* desc;
  const NormHeadsPlan* plan;
};

// Whether heads of x, y, weight and bias are aligned to 16 bytes and multiples of them, and y is of
// x's dtype.
bool has_vector_heads(const NormHeadsDesc& desc, const NormHeadsPart& part);

// Plans on a kernel of `table`, the table of a CUDA device. Fails with FASTNORM_ERROR_UNSUPPORTED
// if no kernel supports the call.
fastnorm_status plan_norm_heads(const NormHeadsDesc& desc, const DeviceFacts& facts,
                                std::span<const NormHeadsEntry> table, NormHeadsPlan* plan,
                                Error& error);

// Plans on a specific kernel of a CUDA device, for tests. FASTNORM_ERROR_UNSUPPORTED if it does
// not support the call.
fastnorm_status plan_norm_heads_for(const NormHeadsDesc& desc, const DeviceFacts& facts,
                                    std::span<const NormHeadsEntry> table, int32_t index,
                                    NormHeadsPlan* plan, Error& error);

}  // namespace fastnorm
