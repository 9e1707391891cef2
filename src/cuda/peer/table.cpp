#include "cuda/peer/table.h"

namespace fastnorm::cuda {
namespace {

constexpr auto kEntries = make_entries<PeerFamily, true>();

}  // namespace

std::span<const PeerEntry> peer_table() { return kEntries; }

}  // namespace fastnorm::cuda
