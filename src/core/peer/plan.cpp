#include "core/peer/plan.h"

#include <algorithm>

#include "core/norm/desc.h"
#include "core/norm/plan.h"
#include "core/norm_heads/plan.h"
#include "core/peer/choice.h"

namespace fastnorm {
namespace {

// Rings of peer_sharded_norm.
int32_t statistics_rings(const PeerDesc& peer, int64_t tokens) {
  return static_cast<int32_t>(std::min<int64_t>({peer.rings, kMostStatisticsRings, tokens}));
}

// The first entry that `fits`, and is of the least tile of these.
template <typename Fits>
PeerPlan find(std::span<const PeerEntry> table, Fits fits) {
  PeerPlan plan;
  for (const PeerEntry& entry : table) {
    if (!fits(entry.variant)) continue;
    if (plan.entry != nullptr && plan.entry->variant.row_vectors() <= entry.variant.row_vectors())
      continue;
    plan.entry = &entry;
    plan.index = static_cast<int32_t>(&entry - table.data());
  }
  return plan;
}

// The kernel of a lean call whose rings have so many rows, by the data; else the least tile.
template <typename Fits>
PeerPlan find_lean(std::span<const PeerEntry> table, int64_t rows, int64_t row_vectors,
                   int32_t cluster_blocks, Fits fits) {
  for (const PeerTile& tile : peer_tiles()) {
    if (row_vectors > tile.row_vectors || rows > tile.rows || tile.blocks > cluster_blocks)
      continue;
    const PeerPlan plan = find(table, [&](const PeerVariant& v) {
      return v.lean && v.threads == tile.threads && v.vectors == tile.vectors &&
             v.blocks == tile.blocks && fits(v);
    });
    if (plan.entry != nullptr) return plan;
  }
  return find(table, [&](const PeerVariant& v) { return v.lean && !v.is_cluster() && fits(v); });
}

}  // namespace

PeerGrid peer_grid(const PeerPlan& plan) {
  const PeerVariant& v = plan.entry->variant;
  const auto rings = static_cast<uint32_t>(plan.rings), threads = static_cast<uint32_t>(v.threads);
  // A thread of it has a ring.
  if (v.form == PeerForm::kStatistics) return {(rings + threads - 1) / threads, threads};
  return {rings * static_cast<uint32_t>(v.blocks), threads};
}

int32_t peer_rings(const PeerDesc& peer, int64_t rows, bool two_shot) {
  const int64_t steps = two_shot ? (rows + peer.ranks - 1) / peer.ranks : rows;
  return static_cast<int32_t>(std::min<int64_t>(peer.rings, steps));
}

PeerPlan plan_peer_sum(const PeerDesc& peer, const NormDesc& norm, const NormKey& key, bool exact,
                       std::span<const PeerEntry> table, int32_t cluster_blocks) {
  const bool two_shot = peer_is_two_shot(peer, norm.rows, norm.n);
  const int64_t vectors = (norm.n * dtype_bytes(norm.dtype) + 15) / 16;
  const int32_t rings = peer_rings(peer, norm.rows, two_shot);
  PeerPlan plan;
  if (!exact && key.access == Access::kVector && key.affine == Affine::kOnce) {
    const PeerForm form = two_shot ? PeerForm::kTwoShot : PeerForm::kOneShot;
    const Sink sink = key.sink == Sink::kStore ? Sink::kStore : Sink::kQuant;
    const bool pair = peer.ranks == 2 && !two_shot;
    const auto fits = [&](const PeerVariant& v) {
      return v.dtype == norm.dtype && v.form == form && v.stat == key.stat &&
             (v.group == 1) == pair && v.row_vectors() >= vectors &&
             (!v.is_cluster() || rings == norm.rows);
    };
    const bool codes = sink == Sink::kQuant && is_lean_static(norm);
    if (codes || (sink == Sink::kStore && is_lean(norm))) {
      const Sink lean = codes ? Sink::kStatic : Sink::kStore;
      plan = find_lean(table, norm.rows, vectors, cluster_blocks,
                       [&](const PeerVariant& v) { return v.sink == lean && fits(v); });
    }
    if (plan.entry == nullptr) {
      plan =
          find(table, [&](const PeerVariant& v) { return !v.lean && v.sink == sink && fits(v); });
    }
  }
  if (plan.entry == nullptr) {
    const PeerForm form = two_shot ? PeerForm::kSumTwoShot : PeerForm::kSum;
    plan =
        find(table, [&](const PeerVariant& v) { return v.dtype == norm.dtype && v.form == form; });
  }
  plan.rings = rings;
  return plan;
}

PeerPlan plan_peer_sharded(const PeerDesc& peer, const NormHeadsDesc& apply,
                           std::span<const PeerEntry> table) {
  if (apply.tokens > kMostShardedTokens) return {};
  int64_t vectors = 0;
  for (int32_t i = 0; i < apply.count; ++i) {
    const NormHeadsPart& part = apply.parts[i];
    if (!has_vector_heads(apply, part)) return {};
    vectors = std::max(vectors, part.heads * part.norm.n * dtype_bytes(apply.dtype) / 16);
  }
  PeerPlan plan = find(table, [&](const PeerVariant& v) {
    return v.form == PeerForm::kSharded && v.dtype == apply.dtype &&
           v.threads * v.vectors >= vectors;
  });
  if (plan.entry != nullptr) plan.rings = statistics_rings(peer, apply.tokens);
  return plan;
}

PeerPlan plan_peer_statistics(const PeerDesc& peer, int64_t tokens,
                              std::span<const PeerEntry> table) {
  PeerPlan plan = find(table, [](const PeerVariant& v) { return v.form == PeerForm::kStatistics; });
  plan.rings = statistics_rings(peer, tokens);
  return plan;
}

}  // namespace fastnorm
