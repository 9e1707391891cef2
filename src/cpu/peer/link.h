// Peers of one process: ranks are threads, buffers ordinary memory.
#pragma once

#include <memory>

#include "core/peer/link.h"

namespace fastnorm::cpu {

// `buffers` are the ranks' [desc.ranks]; null: the link makes its own, and connect() finds the
// others. `dry_run`: calls do nothing.
std::unique_ptr<PeerLink> make_peer_link(const PeerDesc& desc, void* const* buffers, bool dry_run);

}  // namespace fastnorm::cpu
