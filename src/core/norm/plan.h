// From a description and the facts of a device to a launch. Pure functions of their arguments. They
// run for every architecture on a machine without a GPU, and so do their tests.
#pragma once

#include <cstdint>
#include <span>

#include "core/common/arch_spec.h"
#include "core/common/error.h"
#include "core/common/tile.h"
#include "core/norm/choice.h"
#include "core/norm/desc.h"
#include "core/norm/key.h"

namespace fastnorm {

// Facts of a device, read once.
struct DeviceFacts {
  int32_t device_type = FASTNORM_DEVICE_CPU;
  int32_t device_id = 0;
  const ArchSpec* arch = nullptr;       // CUDA
  int32_t multiprocessors = 0;          // CUDA
  int32_t max_cluster_blocks = 1;       // CUDA: what this device (a MIG slice, say) can schedule
  int32_t threads = 1;                  // CPU: that may work on one call
  int64_t l2_bytes = 0;                 // CPU: of one core
  int32_t vector_bytes = kVectorBytes;  // widest access of the kernels
  bool pdl = false;  // CUDA: calls have programmatic dependent launch unless they refuse it
};

struct NormPlan {
  const NormEntry* entry = nullptr;  // nullptr: no rows, nothing to launch
  int32_t index = -1;                // of entry in its backend's table
  int32_t rows_per_block = 1;        // CPU: least rows of a range
  int32_t vector_bytes = 1;          // widest access that all addresses and strides allow
  bool stream_loads = false;         // CUDA: streaming loads
  uint32_t prefetch_rows = 0;        // CUDA: distance of the row brought into L2; 0 = none
  bool non_temporal = false;         // CPU: store past the caches
  uint64_t blocks = 0;               // CUDA: of the grid; CPU: ranges at the most
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  NormKind kind;  // CUDA: of the call, and the line that decided
  const NormChoice* line = nullptr;
};

// A described and planned call with rows.
struct NormCall {
  const NormDesc* desc;
  const NormPlan* plan;
};

// The key of the least general kernel that computes `desc` on a device, but for Flavour, which
// depends on the tile.
NormKey norm_key(const NormDesc& desc, const DeviceFacts& facts);

// True if each group of `vectors` 16-byte vectors of a row of `dtype` becomes codes that one access
// can store.
bool codes_aligned(const QuantDesc& quant, Dtype dtype, int vectors = 1);
inline bool codes_aligned(const NormDesc& desc, int vectors = 1) {
  return codes_aligned(desc.quant, desc.dtype, vectors);
}

// True if weight and bias have x's dtype or are absent, and only LAYER has a bias. They may vary
// along the innermost dimension of rows only.
bool plain_weights(const NormDesc& desc);

// True if rows have 16 bits, and weight and bias are f32 or absent, within the limits of
// plain_weights().
bool f32_weights(const NormDesc& desc);

// True if the call asks for nothing that Flavour::kLean leaves out, and its rows have one index.
bool is_lean(const NormDesc& desc);
// True if the call quantises with one static scale, with or without y beside the codes, and asks
// for nothing else that lean kernels leave out. Rows have 16-bit numbers and one index.
bool is_lean_static(const NormDesc& desc);

// Index in `table` (sorted by packed()) of the entry with this key and tile, or -1.
int32_t find_entry(std::span<const NormEntry> table, NormKey key, Tile tile);

// The rows that a GPU kernel supports, in 16-byte vectors.
struct VectorRange {
  int64_t least, most;
};
VectorRange vectors_held(const NormEntry& entry);

class NormIndex;
class NormTuning;

// Plans one call on the kernel that `tuning` (nullptr: none) or the lists select. `index` is the
// table's; nullptr: search. FASTNORM_ERROR_UNSUPPORTED if the grid would be too large.
// FASTNORM_ERROR_INTERNAL if the table lacks the selected kernel, which tests rule out.
fastnorm_status make_plan(const NormDesc& desc, const DeviceFacts& facts,
                          std::span<const NormEntry> table, NormPlan* plan, Error& error,
                          const NormTuning* tuning = nullptr, const NormIndex* index = nullptr);

// If `second` can share the launch of `first`, plans it on the same kernel and returns true. A fast
// form of plan_together(), for calls that differ only in addresses and strides, or with fewer rows
// in the second, like keys after queries. Both must have rows. If it returns false, *plan is
// unspecified and make_plan() must be called.
bool plan_like(const NormDesc& first, const NormPlan& first_plan, const NormDesc& second,
               const DeviceFacts& facts, NormPlan* plan, Error& error);

// For two neighbouring calls with rows in a fastnorm_norm_many. If one kernel of their key can run
// both in one grid and supports the rows of both, both plans get it. Their own plans may have
// different kernels, because their numbers of rows differ. Returns whether there is one.
bool plan_together(const NormDesc& first, const NormDesc& second, const DeviceFacts& facts,
                   std::span<const NormEntry> table, NormPlan* first_plan, NormPlan* second_plan);

// Refuses rows that a grid of `blocks` thread blocks cannot number.
fastnorm_status check_grid(const NormDesc& desc, uint64_t blocks, const ArchSpec& arch,
                           Error& error);

// Plans one call on a specific kernel, for plan_together() and tests. FASTNORM_ERROR_UNSUPPORTED if
// the kernel does not support the call.
fastnorm_status make_plan_for_entry(const NormDesc& desc, const DeviceFacts& facts,
                                    std::span<const NormEntry> table, int32_t index, NormPlan* plan,
                                    Error& error);

}  // namespace fastnorm
