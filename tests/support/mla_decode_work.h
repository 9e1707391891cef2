// What the planner of MLA decode makes, computed on the host.
#pragma once

#include <cstdint>
#include <span>

#include "core/mla_decode/plan.h"

namespace fastnorm {

// A request as the planner sees it.
struct MlaDecodeLength {
  int32_t kv_len;
  int32_t s_q;
};

// Tiles of a request. A request without cached tokens or without new tokens has none.
constexpr int32_t mla_tiles(MlaDecodeLength length) {
  return length.s_q <= 0 || length.kv_len <= 0 ? 0 : (length.kv_len - 1) / kMlaTileTokens + 1;
}

// Pieces of a request with `tiles` tiles, if split_tiles is not 0.
constexpr int32_t mla_fixed_pieces(int32_t tiles, int32_t split_tiles) {
  return tiles <= split_tiles ? 1 : (tiles - 1) / split_tiles + 1;
}

// The device planner's twin on the host: it makes the same records, bit for bit. `splits` has room
// for all split requests.
void mla_decode_work(std::span<const MlaDecodeLength> lengths, int32_t heads, int32_t split_tiles,
                     std::span<MlaDecodePart> parts, std::span<MlaDecodeSplit> splits,
                     MlaDecodePlanHeader* header);

}  // namespace fastnorm
