// Which planned calls of the norm share a launch, and the grid of each launch.
#pragma once

#include <span>

#include "core/common/tile.h"
#include "core/norm/plan.h"

namespace fastnorm {

// How many of `calls`, from the first on, one grid covers: 1 or 2.
size_t calls_together(std::span<const NormCall> calls);

// The grid of one or two calls. Passed by address: in registers its parts would have to be packed
// and unpacked.
struct Grid {
  GridForm form;
  uint32_t x, y;
  uint32_t first_blocks;  // kHeads: blocks along x of the first call
};
void find_grid(std::span<const NormCall> calls, Grid* grid);

// A grid of GridForm::kHeads, if it suits the heads, [tokens, heads, d]. Both calls must have the
// same tokens, and few threads may be idle. `second`: nullptr = none.
bool find_heads_grid(const NormDesc& first, const NormDesc* second, int rows_per_block, Grid* grid);

// What several calls launch together.
struct GridCount {
  int32_t launches;  // kernels
  uint64_t blocks;   // of the grids; CPU: an upper limit of threads
};
GridCount count_grids(std::span<const NormCall> calls, const DeviceFacts& facts);

}  // namespace fastnorm
