#include "cuda/peer/table.h"

namespace fastnorm::cuda {
namespace {

constexpr auto make_entries() {
  std::array<PeerEntry, kPeerWords.size()> entries = {};
  for (size_t i = 0; i < entries.size(); ++i)
    entries[i] = make_peer_entry(peer_variant_of(kPeerWords[i]));
  return entries;
}
constexpr auto kEntries = make_entries();

// Each kernel once, whatever its blocks of a multiprocessor.
constexpr bool ascends() {
  for (size_t i = 1; i < kEntries.size(); ++i) {
    if (kEntries[i - 1].order >> 6 >= kEntries[i].order >> 6) return false;
  }
  return true;
}
static_assert(ascends());

}  // namespace

std::span<const PeerEntry> peer_table() { return kEntries; }

}  // namespace fastnorm::cuda
