// The kernels of peer_allreduce_norm and peer_sharded_norm on a GPU, and which one a call runs on.
#pragma once

#include <cstdint>
#include <span>

#include "core/common/word.h"
#include "core/norm/key.h"
#include "core/norm_heads/desc.h"
#include "core/peer/choice.h"
#include "core/peer/desc.h"

namespace fastnorm {

enum class PeerForm : uint8_t {
  kOneShot,     // exchange and norm in one kernel
  kTwoShot,     // the same, two-shot
  kSum,         // one-shot exchange into a workspace: rows of any layout, length and dtypes
  kSumTwoShot,  // the same, two-shot
  kStatistics,  // exchange of peer_sharded_norm
  kSharded,     // peer_sharded_norm in one kernel: sums, exchange and y
};

// One kernel as data.
struct PeerVariant {
  Dtype dtype = Dtype::kF32;  // of x
  PeerForm form = PeerForm::kOneShot;
  // What kOneShot and kTwoShot have, too:
  Stat stat = Stat::kRms;
  Sink sink = Sink::kStore;
  int16_t threads = 0;  // of a block, a multiple of 32
  int8_t vectors = 0;   // of 16 bytes that a thread holds of a row; kSharded: of each part
  // Thread blocks of a cluster, which has a ring: 1, 2, 4 or 8. Clusters are for calls of a row for
  // each ring.
  int8_t blocks = 1;
  int8_t group = 0;   // ranks whose messages a thread looks for at once; 1: of two ranks
  bool lean = false;  // for calls that ask for nothing else: Flavour::kLean
  bool late = false;  // weights are loaded behind the reduction
  int8_t per_sm = 1;  // blocks that a multiprocessor is to hold

  constexpr bool is_fused() const { return form <= PeerForm::kTwoShot; }
  constexpr bool is_cluster() const { return blocks > 1; }
  constexpr int row_vectors() const { return threads * vectors * blocks; }

  // In its word.
  static constexpr void numbers(auto& v, auto use) {
    use(v.dtype, 2), use(v.form, 3), use(v.stat, 1), use(v.sink, 2), use(v.lean, 1);
    use(v.group, 3), use(v.late, 1), use(v.blocks, 4), use(v.vectors, 2), use(v.threads, 10);
    use(v.per_sm, 3);
  }
};

// Its word, and back.
constexpr uint32_t packed(const PeerVariant& v) { return packed_word<uint32_t>(v); }
constexpr PeerVariant peer_variant_of(uint32_t word) { return variant_in<PeerVariant>(word); }

struct PeerEntry {
  PeerVariant variant;
  uint32_t order;  // packed(variant)
  char name[64];
};

struct PeerPlan {
  const PeerEntry* entry = nullptr;
  int32_t index = -1;  // of entry in its table
  int32_t rings = 0;   // of the call: blocks of the grid

  bool is_fused() const { return entry != nullptr && entry->variant.is_fused(); }
  bool is_sharded() const { return entry != nullptr && entry->variant.form == PeerForm::kSharded; }
};

// Thread blocks of a launch, and threads of a block.
struct PeerGrid {
  uint32_t blocks, threads;
};
PeerGrid peer_grid(const PeerPlan& plan);

// Rings that a call of so many rows uses: all ranks say the same.
int32_t peer_rings(const PeerDesc& peer, int64_t rows, bool two_shot);

// The kernel of an all-reduce. `norm` and `key`: the call and its kernel as if x were the sum. A
// fused one where the key's rows are aligned, weights are of x's dtype, and a tile holds a row.
// `table`: the device's; it has at least the kernels of kSum. `cluster_blocks`: the most that the
// device runs. Ranks may choose differently: the messages are the same.
PeerPlan plan_peer_sum(const PeerDesc& peer, const NormDesc& norm, const NormKey& key, bool exact,
                       std::span<const PeerEntry> table, int32_t cluster_blocks);

// The kernel of a whole peer_sharded_norm: for few tokens of aligned heads, where a tile holds a
// part's columns. Else no kernel. `apply`: the call that makes y. Ranks may choose
// differently: their messages are those of plan_peer_statistics().
PeerPlan plan_peer_sharded(const PeerDesc& peer, const NormHeadsDesc& apply,
                           std::span<const PeerEntry> table);

// The kernel of the exchange of peer_sharded_norm.
PeerPlan plan_peer_statistics(const PeerDesc& peer, int64_t tokens,
                              std::span<const PeerEntry> table);

}  // namespace fastnorm
