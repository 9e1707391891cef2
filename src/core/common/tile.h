// How threads share a row, and how many rows a thread block has. Kernels and planning must agree.
#pragma once

#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace fastnorm {

inline constexpr int kVectorBytes = 16;
inline constexpr int kWarpThreads = 32;
// The limits of a tile.
inline constexpr int kMaxThreads = 1024, kMaxVectors = 8, kMaxBlocks = 16;

// An address and strides in bytes, combined by or: the powers of two that divide the result divide
// all of them.
template <size_t kCount>
uint64_t address_bits(const void* data, const int64_t (&strides)[kCount]) {
  uint64_t bits = reinterpret_cast<uintptr_t>(data);
  for (const int64_t stride : strides) bits |= static_cast<uint64_t>(stride);
  return bits;
}

// How the threads of a GPU kernel share a row. A CPU kernel has the default tile.
struct Tile {
  int16_t threads = 0;  // threads of one block that share a row, a power of two
  int8_t vectors =
      0;  // 16-byte vectors of the row a thread holds in registers; 0 = the row is streamed
  int8_t blocks = 1;  // thread blocks of one cluster that share a row, a power of two

  constexpr auto operator<=>(const Tile&) const = default;

  constexpr uint32_t packed() const {
    return static_cast<uint32_t>(threads) << 16 | static_cast<uint32_t>(vectors) << 8 |
           static_cast<uint32_t>(blocks);
  }
  constexpr int threads_per_row() const { return threads * blocks; }
  constexpr bool is_cluster() const { return blocks > 1; }
};

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
