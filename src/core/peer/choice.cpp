#include "core/peer/choice.h"

namespace fastnorm {
namespace {

struct Choice {
  int32_t ranks;
  int64_t one_shot_bytes;
  int32_t rings;
};

// Each table expands its own lines of the data.
#define PEER_CHOICE(ranks, one_shot_bytes, rings, source) {ranks, one_shot_bytes, rings},
#define PEER_TILE(row_vectors, rows, threads, vectors, blocks, source)
#define PEER_NUMBER(name, value, why)
constexpr Choice kChoices[] = {
#include "core/peer/choice.inc"
};
#undef PEER_CHOICE
#undef PEER_TILE
#define PEER_CHOICE(ranks, one_shot_bytes, rings, source)
#define PEER_TILE(row_vectors, rows, threads, vectors, blocks, source) \
  {row_vectors, rows, threads, vectors, blocks},
constexpr PeerTile kTiles[] = {
#include "core/peer/choice.inc"
};
#undef PEER_CHOICE
#undef PEER_TILE
#undef PEER_NUMBER

constexpr bool is_complete() {
  int32_t ranks = 2;
  for (const Choice& choice : kChoices) {
    if (choice.ranks != ranks++ || choice.one_shot_bytes < 0 || choice.rings < 1 ||
        choice.rings > kMostPeerRings)
      return false;
  }
  return ranks == kMaxRanks + 1;
}
static_assert(is_complete());

}  // namespace

int64_t peer_one_shot_bytes(const PeerDesc& desc) {
  return desc.one_shot_bytes != 0 ? desc.one_shot_bytes : kChoices[desc.ranks - 2].one_shot_bytes;
}

bool peer_may_one_shot(const PeerDesc& desc) { return desc.algorithm != FASTNORM_PEER_TWO_SHOT; }

bool peer_may_two_shot(const PeerDesc& desc) {
  if (desc.algorithm != FASTNORM_PEER_AUTO) return desc.algorithm == FASTNORM_PEER_TWO_SHOT;
  return peer_one_shot_bytes(desc) != INT64_MAX;
}

std::span<const PeerTile> peer_tiles() { return kTiles; }

int32_t default_cuda_rings(int32_t ranks) { return kChoices[ranks - 2].rings; }

bool peer_is_two_shot(const PeerDesc& desc, int64_t rows, int64_t columns) {
  if (desc.algorithm != FASTNORM_PEER_AUTO) return desc.algorithm == FASTNORM_PEER_TWO_SHOT;
  // Rows are fewer than 2^31 and columns at most 2^16.
  return rows * columns * dtype_bytes(desc.dtype) > peer_one_shot_bytes(desc);
}

}  // namespace fastnorm
