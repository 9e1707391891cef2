// Plans a backward pass: its launches, its workspace and its bytes follow from its description and
// the facts of a device. These are pure functions. They plan for every architecture on a machine
// without a GPU. docs/norm_backward.md defines T, c1, c2, the row order and the branch.
#pragma once

#include <cstdint>
#include <span>

#include "core/common/error.h"
#include "core/common/word.h"
#include "core/norm/key.h"
#include "core/norm/plan.h"
#include "core/norm_backward/desc.h"

namespace fastnorm {

// What a kernel of the family does.
enum class BackwardForm : uint8_t {
  kFold,     // the sums of blocks to dweight and dbias
  kColumns,  // sums of dweight and dbias, by blocks that own columns
  kRows,     // statistics and dx, row by row; any address, any length, any dtypes
  // Aligned rows in registers:
  kPersistent,  // a block takes many rows, writes dx and keeps sums of dweight and dbias
  kFew,  // one launch: some blocks own a row and write dx, others own columns and write dweight.
  // What kColumns and kRows do, of either statistic, for calls with a gate:
  kGatedColumns,
  kGatedRows,
  // And for calls with a branch:
  kBranchColumns,
  kBranchRows,
};

// What a held form reads besides x and dy. The general forms have no input of their own.
enum class BackwardInput : uint8_t {
  kPlain,      // nothing
  kAdd,        // dresidual_in
  kGated,      // a gate after or before the norm: silu or sigmoid
  kBranch,     // a branch with an RMSNorm, and dresidual_in or nothing
  kModulated,  // a branch times a residual gate, and dresidual_in or nothing
};
inline constexpr int kBackwardInputs = 5;

// One kernel as data. dtype is x's; kFold does not use it.
struct NormBackwardVariant {
  Dtype dtype = Dtype::kF32;
  Stat stat = Stat::kRms;
  BackwardInput input = BackwardInput::kPlain;
  BackwardForm form = BackwardForm::kFold;
  int16_t threads = 0;  // of one block, for one row; kFold, kColumns: of a block
  int8_t vectors = 0;   // 16-byte vectors of a row that a thread holds; 0 = the row is streamed
  int8_t blocks = 1;    // of a cluster, for one row
  int8_t lanes = 1;     // rows that a block has at once
  // kPersistent: 1 = a step loads the next one's rows, into registers. s > 1: a ring of s stages in
  // shared memory; rows are loaded s - 1 steps ahead.
  int8_t stages = 0;
  int8_t column_vectors = 0;  // kFew: vectors side by side that a block owns
  int8_t chains = 0;          // kFew: chains of rows that a thread of these blocks has
  int8_t per_sm = 1;          // for __launch_bounds__

  constexpr bool operator==(const NormBackwardVariant&) const = default;

  constexpr int block_threads() const { return threads * lanes; }
  constexpr int row_threads() const { return threads * blocks; }
  constexpr bool is_cluster() const { return blocks > 1; }
  constexpr bool is_one_warp() const { return threads <= 32; }  // a row has no more in a block
  constexpr bool writes_rows() const {                          // a row at a time
    return form == BackwardForm::kRows || form == BackwardForm::kGatedRows ||
           form == BackwardForm::kBranchRows;
  }
  // Tensors of rows that a held form reads.
  constexpr bool has_branch() const {
    return input == BackwardInput::kBranch || input == BackwardInput::kModulated;
  }
  // kAdd of kFew serves calls without dresidual_in, too, and so does a branch.
  constexpr bool asks_for_add() const { return form == BackwardForm::kFew || has_branch(); }
  constexpr int row_inputs() const {
    return has_branch() ? 4 : input == BackwardInput::kPlain ? 2 : 3;
  }
  // Values of a row that it reads: rstd, LayerNorm's mean, and the rstd of a branch.
  constexpr int row_statistics() const {
    return 1 + (stat == Stat::kLayer ? 1 : 0) + (input == BackwardInput::kBranch ? 1 : 0);
  }
  // What a stage of the ring takes in shared memory.
  constexpr int stage_bytes() const { return block_threads() * row_inputs() * vectors * 16; }
  constexpr int ring_bytes() const { return has_ring() ? stages * stage_bytes() : 0; }
  constexpr bool is_streamed() const { return vectors == 0; }
  constexpr bool has_ring() const { return stages > 1; }

  // In its word.
  static constexpr void numbers(auto& v, auto use) {
    use(v.dtype, 2), use(v.stat, 1), use(v.input, 3), use(v.form, 4), use(v.threads, 11);
    use(v.vectors, 4), use(v.blocks, 4), use(v.lanes, 7), use(v.stages, 3);
    use(v.column_vectors, 5), use(v.chains, 4), use(v.per_sm, 5);
  }
};

// Its word, and back. The bits from kBackwardDetailBits on tell variants apart.
constexpr int kBackwardDetailBits = 14;
constexpr uint64_t packed(const NormBackwardVariant& v) { return packed_word<uint64_t>(v); }
constexpr NormBackwardVariant backward_variant_of(uint64_t word) {
  return variant_in<NormBackwardVariant>(word);
}

struct NormBackwardEntry {
  NormBackwardVariant variant;
  uint64_t order = 0;  // packed(variant)
  char name[64] = "";  // unique in its table: "norm_backward bf16 rms add persistent 512x2x2 1x3"
};

// The kernel's options for a call, as bits of one word.
enum NormBackwardBits : uint32_t {
  kBackwardSingleIndex = 1 << 0,  // row r is index r of every tensor
  kBackwardThreeIndices = 1 << 1,
  kBackwardRoundNormalized = 1 << 2,  // what dweight multiplies is rounded to T
  kBackwardRoundGain = 1 << 3,        // weight + offset is rounded to T
  kBackwardAccumulateDweight = 1 << 4,
  kBackwardAccumulateDbias = 1 << 5,
  // The common call: rows of a group are evenly strided, the weight is aligned, and nothing is
  // rounded between steps. Held forms have code for that.
  kBackwardLean = 1 << 6,
  kBackwardGateBefore = 1 << 7,    // the gate multiplies before the norm
  kBackwardRoundResult = 1 << 11,  // what a gate after the norm multiplies is rounded to T
  kBackwardAccumulateBranchDweight = 1 << 12,
  kBackwardAccumulateBranchDbias = 1 << 13,
  kBackwardAccumulateResidualGate = 1 << 14,
  // The branch has a norm. The next three say what of it is rounded to T.
  kBackwardBranchNorm = 1 << 15,
  kBackwardBranchRoundNormalized = 1 << 16,
  kBackwardBranchRoundGain = 1 << 17,
  kBackwardBranchRoundResult = 1 << 18,
  kBackwardLayer = 1 << 21,  // x is normalised by LayerNorm
  // Bits of one launch:
  kBackwardTrigger = 1 << 8,            // the stream's next kernel may start early
  kBackwardComputeStatistics = 1 << 9,  // from x
  kBackwardStatisticsOnly = 1 << 10,    // store statistics alone; kBranchRows: c1 and c2 alone
  kBackwardKeptMeans = 1 << 19,         // kBranchRows: read c1 and c2 from the workspace
};

// One launch.
struct NormBackwardStep {
  int32_t index = -1;                            // of its kernel in the table
  const NormBackwardVariant* variant = nullptr;  // that kernel
  uint32_t blocks_x = 0, blocks_y = 1;
  int32_t shared_bytes = 0;  // that the launch asks for
  uint32_t bits = 0;         // of one launch
  bool early = false;        // may start before the stream's previous kernel has ended
  bool of_branch = false;    // statistics of the branch's rows
};

// The longest rows of kGatedRows where a row has one warp, in vectors of 16 bytes.
inline constexpr uint32_t kBackwardWarpVectors = 1 << 19;

// The most that a launch of a kernel asks for.
int32_t most_backward_shared_bytes(const NormBackwardVariant& variant);

inline constexpr int kMostBackwardSteps = 6;
inline constexpr int32_t kBackwardFoldColumns = 32;  // of a block of kFold

// Offsets are bytes into the workspace, multiples of 256.
struct NormBackwardPlan {
  const char* kernel = "";  // "" = nothing to do
  const NormBackwardEntry* entry =
      nullptr;              // CUDA: of the kernel that writes dx, else of the first
  const char* kind = "";    // CUDA: the list that chose `entry`; "" = none did
  const char* choice = "";  // CUDA: the line of that list
  NormBackwardStep steps[kMostBackwardSteps];
  int32_t launches = 0;  // CUDA: of `steps`
  int32_t lanes = 1;     // the row order of dweight and dbias
  int32_t row_blocks = 0;
  int32_t split = 1;           // CUDA: thread blocks that share a block's lanes
  int64_t partial_stride = 0;  // CUDA: floats from a block's sums to the next one's
  uint64_t rstd_offset = 0;    // CUDA, where statistics are computed again for several kernels
  uint64_t mean_offset = 0;
  // CUDA, of a call with a branch: its statistics, and c1 and c2 of x's rows.
  uint64_t branch_rstd_offset = 0, branch_mean_offset = 0, means_offset = 0;
  // The blocks' sums for dweight, dbias, and the branch's dweight, dbias and dresidual_gate.
  uint64_t partial_offset[kBackwardSums] = {};
  uint64_t token_values_offset = 0;  // NormBackwardHeads::across_heads
  bool keeps_statistics = false;     // CUDA: they are in the workspace
  bool keeps_branch_statistics = false, keeps_means = false;
  uint64_t workspace_bytes = 0;
  uint64_t blocks = 0;  // of all grids; CPU: ranges at the most
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;

  std::span<const NormBackwardStep> planned() const {
    return {steps, static_cast<size_t>(launches)};
  }
};

// A part of a call that launches something.
struct NormBackwardCall {
  NormBackwardDesc desc;
  NormBackwardPlan plan;
  uint64_t workspace_offset;  // where its workspace begins in the call's
  bool first;                 // of two parts of one, before the other may replace dy

  // By integers: without a workspace there is no address to add to.
  void* own(void* workspace) const {
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(workspace) + workspace_offset);
  }
};

// Plans on a kernel of `table`, the table of a CUDA device. FASTNORM_ERROR_UNSUPPORTED if a grid
// would be too large, or if there are too many rows.
fastnorm_status plan_norm_backward(const NormBackwardDesc& desc, const DeviceFacts& facts,
                                   std::span<const NormBackwardEntry> table, NormBackwardPlan* plan,
                                   Error& error);

// Plans on a specific kernel, for tests: `index` is that of a kPersistent, kFew or kRows kernel.
// FASTNORM_ERROR_UNSUPPORTED if the kernel does not support the call.
fastnorm_status plan_norm_backward_for(const NormBackwardDesc& desc, const DeviceFacts& facts,
                                       std::span<const NormBackwardEntry> table, int32_t index,
                                       NormBackwardPlan* plan, Error& error);

}  // namespace fastnorm
