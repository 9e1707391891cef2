// What a norm_heads_backward call launches on a CUDA device that has kernels of the family. Pure
// functions of their arguments.
#pragma once

#include <cstdint>
#include <span>

#include "core/common/error.h"
#include "core/common/word.h"
#include "core/norm/plan.h"
#include "core/norm_backward/desc.h"
#include "core/norm_heads/desc.h"

namespace fastnorm {

// What a kernel of the family does.
enum class HeadsBackwardForm : uint8_t {
  kFold,     // the sums of blocks to dweight and dbias
  kGeneral,  // rows of any part, and what a token's heads share
  kHeld,     // aligned rows that registers hold, of parts that are alike
  kTokens,   // what a token's heads share, of aligned heads that a block's registers hold together
  kWhole,    // rows of aligned heads, and what they share, of tokens that a block's registers hold
};

// One kernel as data. The dtype of kFold means nothing.
struct NormHeadsBackwardVariant {
  Dtype dtype = Dtype::kF32;  // T
  HeadsBackwardForm form = HeadsBackwardForm::kFold;
  bool any = false;     // kHeld: LAYER, dbias and any tables, too
  int16_t threads = 0;  // kHeld: of a row; else of a block
  int8_t vectors = 0;   // kHeld: of 16 bytes that a thread holds of a row; kTokens: of all heads
  int8_t rows = 1;      // kHeld: that a block has at once
  int8_t per_sm = 1;    // thread blocks, for __launch_bounds__

  constexpr bool operator==(const NormHeadsBackwardVariant&) const = default;

  constexpr bool is_held() const { return form == HeadsBackwardForm::kHeld; }
  constexpr bool has_tokens() const { return form == HeadsBackwardForm::kTokens; }
  constexpr bool is_whole() const { return form == HeadsBackwardForm::kWhole; }
  // kWhole: most vectors of a head, whose pairs are in one warp.
  static constexpr int64_t kMostHeadVectors = 32;
  constexpr bool has_held_params() const { return is_held() || has_tokens() || is_whole(); }
  constexpr int block_threads() const { return threads * rows; }

  // In its word.
  static constexpr void numbers(auto& v, auto use) {
    use(v.dtype, 2), use(v.form, 3), use(v.any, 1), use(v.threads, 10), use(v.vectors, 4);
    use(v.rows, 7), use(v.per_sm, 4);
  }
};

// Its word, and back.
constexpr uint32_t packed(const NormHeadsBackwardVariant& v) { return packed_word<uint32_t>(v); }
constexpr NormHeadsBackwardVariant heads_backward_variant_of(uint32_t word) {
  return variant_in<NormHeadsBackwardVariant>(word);
}

// kHeld, kWhole: of a ring in shared memory, and how far ahead rows are copied to it, plus one.
inline constexpr int32_t kHeadsRingStages = 4;

// What it takes: x and dy in 16-byte vectors.
constexpr int32_t heads_ring_bytes(const NormHeadsBackwardVariant& v) {
  return kHeadsRingStages * 2 * v.vectors * v.block_threads() * 16;
}

// kWhole: lanes of a thread block at the most.
inline constexpr int32_t kMostWholeLanes = 32;
// That ring and the sums of lanes that wait, for each power of two below the most lanes.
inline constexpr int32_t kWholeLevels = 5;
constexpr int32_t heads_shared_bytes(const NormHeadsBackwardVariant& v) {
  return heads_ring_bytes(v) + (v.is_whole() ? kWholeLevels * 2 * v.block_threads() * 16 : 0);
}

struct NormHeadsBackwardEntry {
  NormHeadsBackwardVariant variant;
  uint32_t order = 0;  // packed(variant)
  char name[56] = "";  // unique in its table: "norm_heads_backward bf16 held rms 16x1x64"
};

// The descriptions of a call, in the order in which it was split.
inline constexpr int32_t kMostHeadsGradients = 2 * kMaxHeadsParts;

// What a range of thread blocks does for one description.
enum class HeadsBackwardRole : uint8_t { kTokens, kRows, kDweight, kDbias };

struct HeadsBackwardItem {
  int32_t part = 0;  // the description's number
  HeadsBackwardRole role = HeadsBackwardRole::kRows;
  uint32_t first_block = 0;
};

// One launch.
struct HeadsBackwardStep {
  int32_t index = -1;                                 // of its kernel in the table
  const NormHeadsBackwardVariant* variant = nullptr;  // that kernel
  uint32_t blocks = 0;
  int32_t shared_bytes = 0;  // that the launch asks for
  bool early = false;        // may start before the launch before it has ended
  bool triggers = false;     // lets the next one start early
  int32_t count = 0;
  HeadsBackwardItem items[kMostHeadsGradients];

  std::span<const HeadsBackwardItem> planned() const { return {items, static_cast<size_t>(count)}; }
};

// The plan of one description. Offsets are bytes into the workspace, multiples of 256.
struct HeadsGradientPlan {
  // How rows are spread, with sums by the row order of dweight: `split` thread blocks share the
  // lanes of a block, and each has `lanes` of them.
  uint32_t lanes = 1, blocks = 0, split = 1;
  bool stores_sums = false;         // its one block has all rows, so dweight and dbias need no fold
  int64_t partial_stride = 0;       // floats from a block's sums to the next one's
  uint64_t partial_offset[2] = {};  // of dweight and dbias
  uint64_t token_offset = 0;        // kTokenFloats floats for each token
};

inline constexpr int32_t kTokenFloats = 4;  // mean, rstd, c1 and c2
// Columns of all lanes of a thread block of kGeneral, at the most: shared memory has two sums for
// each.
inline constexpr int64_t kMostHeadsLaneColumns = 4096;

struct NormHeadsBackwardPlan {
  const char* kernel = "";  // "" = nothing to do
  const NormHeadsBackwardEntry* entry =
      nullptr;  // of the kernel that has the rows, else of the fold
  int32_t launches = 0;
  HeadsBackwardStep steps[3];
  HeadsGradientPlan parts[kMostHeadsGradients];
  uint64_t workspace_bytes = 0;
  uint64_t blocks = 0;  // of all grids
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;

  std::span<const HeadsBackwardStep> planned() const {
    return {steps, static_cast<size_t>(launches)};
  }
};

// `descs`: what norm_backward_parts() makes of the call's parts, at most kMostHeadsGradients. One
// without dx and dweight that comes before another of the same part is worked on first, as that
// one may replace dy.
struct HeadsGradients {
  int32_t count = 0;
  const NormBackwardDesc* at[kMostHeadsGradients] = {};
  bool first[kMostHeadsGradients] = {};  // before the other ones
};

// A described and planned call that launches something.
struct NormHeadsBackwardCall {
  const HeadsGradients* gradients;
  const NormHeadsBackwardPlan* plan;
};

// Plans on kernels of `table`. FASTNORM_ERROR_UNSUPPORTED where rows or blocks are too many.
fastnorm_status plan_norm_heads_gradients(const HeadsGradients& call, const DeviceFacts& facts,
                                          std::span<const NormHeadsBackwardEntry> table,
                                          NormHeadsBackwardPlan* plan, Error& error);

// Plans the rows on kernel `index`, of kGeneral, kHeld or kWhole, or the first launch on
// one of kTokens. For tests.
// FASTNORM_ERROR_UNSUPPORTED if it cannot serve the call.
fastnorm_status plan_norm_heads_gradients_for(const HeadsGradients& call, const DeviceFacts& facts,
                                              std::span<const NormHeadsBackwardEntry> table,
                                              int32_t index, NormHeadsBackwardPlan* plan,
                                              Error& error);

}  // namespace fastnorm
