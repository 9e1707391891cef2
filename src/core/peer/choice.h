// What the data of choice.inc say. One-shot or two-shot is a pure function of what all ranks know
// alike.
#pragma once

#include <span>

#include "core/peer/desc.h"

namespace fastnorm {

#define PEER_CHOICE(ranks, one_shot_bytes, rings, source)
#define PEER_TILE(row_vectors, rows, threads, vectors, blocks, source)
#define PEER_NUMBER(name, value, why) inline constexpr int64_t name = value;
#include "core/peer/choice.inc"
#undef PEER_CHOICE
#undef PEER_TILE
#undef PEER_NUMBER

// The most bytes of rows that go by one-shot.
int64_t peer_one_shot_bytes(const PeerDesc& desc);

// Whether there are calls that go so.
bool peer_may_one_shot(const PeerDesc& desc);
bool peer_may_two_shot(const PeerDesc& desc);

// Tiles of lean calls up to so long rows and so many rows, in the order of preference.
struct PeerTile {
  int32_t row_vectors;
  int64_t rows;
  int16_t threads;
  int8_t vectors, blocks;
};
std::span<const PeerTile> peer_tiles();

// The rings of a rank's buffer on CUDA where the caller names none.
int32_t default_cuda_rings(int32_t ranks);

bool peer_is_two_shot(const PeerDesc& desc, int64_t rows, int64_t columns);

}  // namespace fastnorm
