// One-shot or two-shot: a pure function of what all ranks know alike.
#pragma once

#include "core/peer_desc.h"

namespace fastnorm {

// The most bytes of rows that go by one-shot.
int64_t peer_one_shot_bytes(const PeerDesc& desc);

// Whether there are calls that go so.
bool peer_may_one_shot(const PeerDesc& desc);
bool peer_may_two_shot(const PeerDesc& desc);

bool peer_is_two_shot(const PeerDesc& desc, int64_t rows, int64_t columns);

}  // namespace fastnorm
