// The kernels of peer_allreduce_norm and peer_sharded_norm on a GPU, and which one a call runs on.
#pragma once

#include <cstdint>
#include <span>

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
};

// Its word, and back.
constexpr uint32_t packed(const PeerVariant& v) {
  return static_cast<uint32_t>(v.dtype) << 30 | static_cast<uint32_t>(v.form) << 27 |
         static_cast<uint32_t>(v.stat) << 26 | static_cast<uint32_t>(v.sink) << 24 |
         static_cast<uint32_t>(v.lean) << 23 | static_cast<uint32_t>(v.group) << 19 |
         static_cast<uint32_t>(v.late) << 18 | static_cast<uint32_t>(v.blocks) << 14 |
         static_cast<uint32_t>(v.vectors) << 11 | static_cast<uint32_t>(v.threads / 32) << 6 |
         static_cast<uint32_t>(v.per_sm);
}
constexpr PeerVariant peer_variant_of(uint32_t word) {
  const auto bits = [word](int first, int count) { return word >> first & ((1u << count) - 1); };
  PeerVariant v;
  v.dtype = static_cast<Dtype>(bits(30, 2));
  v.form = static_cast<PeerForm>(bits(27, 3));
  v.stat = static_cast<Stat>(bits(26, 1));
  v.sink = static_cast<Sink>(bits(24, 2));
  v.lean = bits(23, 1) != 0;
  v.group = static_cast<int8_t>(bits(19, 4));
  v.late = bits(18, 1) != 0;
  v.blocks = static_cast<int8_t>(bits(14, 4));
  v.vectors = static_cast<int8_t>(bits(11, 3));
  v.threads = static_cast<int16_t>(bits(6, 5) * 32);
  v.per_sm = static_cast<int8_t>(bits(0, 6));
  return v;
}

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
