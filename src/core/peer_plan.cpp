#include "core/peer_plan.h"

#include <algorithm>

#include "core/norm_desc.h"
#include "core/norm_heads_plan.h"
#include "core/peer_choice.h"

namespace fastnorm {
namespace {

// The first entry that `fits`, and is of the least tile of these.
template <typename Fits>
PeerPlan find(std::span<const PeerEntry> table, Fits fits) {
  PeerPlan plan;
  for (const PeerEntry& entry : table) {
    if (!fits(entry.variant)) continue;
    const auto size = [](const PeerEntry& e) { return e.variant.threads * e.variant.vectors; };
    if (plan.entry != nullptr && size(*plan.entry) <= size(entry)) continue;
    plan.entry = &entry;
    plan.index = static_cast<int32_t>(&entry - table.data());
  }
  return plan;
}

}  // namespace

PeerGrid peer_grid(const PeerPlan& plan) {
  const PeerVariant& v = plan.entry->variant;
  const auto rings = static_cast<uint32_t>(plan.rings), threads = static_cast<uint32_t>(v.threads);
  // A thread of it has a ring.
  if (v.form == PeerForm::kStatistics) return {(rings + threads - 1) / threads, threads};
  return {rings, threads};
}

int32_t peer_rings(const PeerDesc& peer, int64_t rows, bool two_shot) {
  const int64_t steps = two_shot ? (rows + peer.ranks - 1) / peer.ranks : rows;
  return static_cast<int32_t>(std::min<int64_t>(peer.rings, steps));
}

PeerPlan plan_peer_sum(const PeerDesc& peer, const NormDesc& norm, const NormKey& key, bool exact,
                       std::span<const PeerEntry> table) {
  const bool two_shot = peer_is_two_shot(peer, norm.rows, norm.n);
  const int64_t vectors = (norm.n * dtype_bytes(norm.dtype) + 15) / 16;
  const Sink sink = key.sink == Sink::kStore ? Sink::kStore : Sink::kQuant;
  const bool pair = peer.ranks == 2 && !two_shot;
  PeerPlan plan;
  if (!exact && key.access == Access::kVector && key.affine == Affine::kOnce) {
    const PeerForm form = two_shot ? PeerForm::kTwoShot : PeerForm::kOneShot;
    plan = find(table, [&](const PeerVariant& v) {
      return v.dtype == norm.dtype && v.form == form && v.stat == key.stat && v.sink == sink &&
             (v.group == 1) == pair && v.threads * v.vectors >= vectors;
    });
  }
  if (plan.entry == nullptr) {
    const PeerForm form = two_shot ? PeerForm::kSumTwoShot : PeerForm::kSum;
    plan =
        find(table, [&](const PeerVariant& v) { return v.dtype == norm.dtype && v.form == form; });
  }
  plan.rings = peer_rings(peer, norm.rows, two_shot);
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
  if (plan.entry != nullptr) plan.rings = peer_rings(peer, apply.tokens, false);
  return plan;
}

PeerPlan plan_peer_statistics(const PeerDesc& peer, int64_t tokens,
                              std::span<const PeerEntry> table) {
  PeerPlan plan = find(table, [](const PeerVariant& v) { return v.form == PeerForm::kStatistics; });
  plan.rings = peer_rings(peer, tokens, false);
  return plan;
}

}  // namespace fastnorm
