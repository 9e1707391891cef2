// The kernels of peers, without CUDA: every architecture has the same.
#pragma once

#include <span>

#include "cuda/peer/list.h"

namespace fastnorm::cuda {

// In the order of their addresses (kernels.h).
std::span<const PeerEntry> peer_table();

}  // namespace fastnorm::cuda
