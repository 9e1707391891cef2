// The row order of dweight and dbias: a function of the number of rows and of n alone, so that CPU,
// GPU and model give the same bits.
//
// Rows go to lanes, lanes to blocks: row i to lane i % lanes of block (i / lanes) % blocks. A lane
// adds its rows in increasing order to +0, by fma(dy, xhat, sum) or sum + dy. phi() folds the lanes
// of a block, then the blocks; then + 0.
//
// On a GPU, `split` thread blocks may share the lanes of a block: number s has lanes s, s + split,
// and so on. phi() adds the upper half of the lanes to the lower half until `split` sums are left.
// These are what the thread blocks have after their own folds. So the sums of a block's thread
// blocks, folded by phi(), are the block's.
#pragma once

#include <bit>
#include <cstdint>

namespace fastnorm {

inline constexpr int64_t kBackwardMaxLanes = 64;
inline constexpr int64_t kBackwardMaxBlocks = 128;
inline constexpr int64_t kBackwardLaneColumns =
    8192;  // lanes * columns, where there is more than one lane
inline constexpr int64_t kBackwardMaxSplit = 4;

constexpr int64_t clamp_between(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

struct NormBackwardRows {
  int64_t lanes;   // Q
  int64_t blocks;  // nb; 0 without rows

  constexpr int64_t lane_of(int64_t row) const { return row % lanes; }
  constexpr int64_t block_of(int64_t row) const { return row / lanes % blocks; }
  // From a row of a lane to the lane's next one.
  constexpr int64_t step() const { return lanes * blocks; }
  // Thread blocks that share a block's lanes if each has so many; 0 if that is not possible.
  constexpr int64_t split_of(int64_t lanes_of_one) const {
    const int64_t split = lanes / lanes_of_one;
    return split <= kBackwardMaxSplit ? split : 0;
  }
  // The most rows of sums that thread blocks may store.
  constexpr int64_t most_partials() const {
    return blocks * (lanes < kBackwardMaxSplit ? lanes : kBackwardMaxSplit);
  }
};

// For `rows` rows (M) of n columns.
constexpr NormBackwardRows norm_backward_rows(int64_t rows, int64_t n) {
  const auto columns = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
  const int64_t lanes = clamp_between(kBackwardLaneColumns / columns, 1, kBackwardMaxLanes);
  const int64_t most = clamp_between((int64_t{1} << 20) / columns, 16, kBackwardMaxBlocks);
  const int64_t needed = rows / lanes + (rows % lanes != 0);
  return {lanes, needed < most ? needed : most};
}

// On a GPU: floats from a block's partial sums to the next block's, which begin at a multiple of 32
// bytes.
constexpr int64_t gpu_partial_stride(int64_t n) { return (n + 7) / 8 * 8; }

// Folds values[0], values[stride], .. (count of them) into the first: with zeros behind them to a
// power of two, the upper half is added to the lower until one is left. A missing value adds +0,
// which changes -0 to +0: skipping it leaves to the final + 0 what is lost.
template <typename Value>
constexpr void phi(Value* values, int64_t count, int64_t stride = 1) {
  for (auto p = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count < 1 ? 1 : count)));
       p > 1;) {
    p /= 2;
    for (int64_t j = 0; j + p < count && j < p; ++j)
      values[j * stride] = values[j * stride] + values[(j + p) * stride];
    if (count > p) count = p;
  }
}

}  // namespace fastnorm
