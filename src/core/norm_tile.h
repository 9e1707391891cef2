// The limits of a tile, and how many rows a thread block has. Kernels and planning must agree.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/norm_key.h"

namespace fastnorm {

inline constexpr int kVectorBytes = 16;
inline constexpr int kWarpThreads = 32;
// The limits of a tile.
inline constexpr int kMaxThreads = 1024, kMaxVectors = 8, kMaxBlocks = 16;

// Rows of one thread block, for tiles of 1, 2, 4 .. 1024 threads with 0 to 8 vectors each. A row of
// several warps has its own block.
inline constexpr int8_t kRowsPerBlock[][kMaxVectors + 1] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 1},          {1, 1, 1, 1, 1, 1, 1, 1, 1},
    {32, 64, 32, 32, 32, 32, 32, 32, 32}, {16, 16, 16, 16, 16, 16, 16, 16, 16},
    {8, 8, 8, 8, 8, 8, 8, 8, 8},          {4, 4, 4, 2, 2, 2, 2, 2, 2},
    {1, 1, 1, 1, 1, 1, 1, 1, 1},          {1, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, 1, 1, 1, 1},          {1, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, 1, 1, 1, 1},
};
constexpr int rows_per_block(Tile tile) {
  // CPU kernels have no threads: 32 % 11, the last line.
  const auto line = static_cast<size_t>(std::countr_zero(static_cast<uint32_t>(tile.threads)));
  return kRowsPerBlock[line % std::size(kRowsPerBlock)][tile.vectors];
}

}  // namespace fastnorm
