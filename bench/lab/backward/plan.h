// What a call of the laboratory's kernels is made of: the row order, kernels of a length, their
// names and their shared memory.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "bench/lab/backward/tile.h"

namespace lab {

std::vector<Entry> rms_entries();
std::vector<Entry> layer_entries();

// The row order (docs/numerics.md): row i goes to lane i mod Q of block (i div Q) mod blocks.
struct RowOrder {
  int lanes, blocks;
};
inline int lanes_of(int n) { return std::clamp(8192 / power_of_two_up(n), 1, 64); }
inline RowOrder row_order(int rows, int n) {
  const int lanes = lanes_of(n);
  const int most = std::clamp((1 << 20) / power_of_two_up(n), 16, 128);
  return {lanes, std::min(most, (rows + lanes - 1) / lanes)};
}

inline bool suits(const Tile& tile, int n) {
  return n % kPerVector == 0 && tile.lanes == lanes_of(n) && n <= tile.columns() &&
         n > (tile.vectors - 1) * tile.threads * kPerVector;
}

// "64x2 8x1 ring4": threads and vectors of a row, lanes and rows of each, where rows wait.
inline std::string name_of(const Tile& t) {
  const auto pair = [](int a, int b) { return std::to_string(a) + "x" + std::to_string(b); };
  std::string name = pair(t.threads, t.vectors) + " " + pair(t.lanes, t.unroll);
  if (t.input == Input::kRegisters) {
    name += " registers";
  } else {
    name += (t.input == Input::kRing ? " ring" : " bulk") + std::to_string(t.stages);
  }
  return name + (t.rereads ? " rereads" : "") + (t.one_warp_folds ? " one-warp" : "") +
         (t.streaming_stores ? " cs" : "");
}

inline int launch_shared_bytes(const Tile& t, int n) {
  const int step_bytes = t.unroll * 2 * t.lanes * (t.input == Input::kRing ? t.columns() : n) * 2;
  const int ring = t.input == Input::kRegisters ? 0 : t.stages * step_bytes;
  const bool is_short = t.threads <= 32;
  const int fold = is_short ? t.lanes * t.columns() * 4 : t.lanes > 1 ? t.lanes * n * 4 : 0;
  return std::max(ring, fold);
}

// Groups of four columns that a block of fold_kernel() has.
inline int fold_columns(int n) { return n >= 2048 ? 8 : n >= 512 ? 4 : 2; }

}  // namespace lab
