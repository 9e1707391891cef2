// A rank's end that fills in parameters and launches nothing. CUDA-free.
#pragma once

#include <memory>

#include "core/peer/link.h"

namespace fastnorm::cuda {

std::unique_ptr<PeerLink> make_dry_peer_link(const PeerDesc& desc, void* const* buffers);

// What all links on CUDA devices say.
fastnorm_status require_connected(bool connected, Error& error);
fastnorm_status require_unconnected(bool connected, Error& error);
fastnorm_status require_own_buffer(bool own, Error& error);

}  // namespace fastnorm::cuda
