// From a described and planned call to what the kernel gets. CUDA-free.
#pragma once

#include <span>

#include "core/backend.h"
#include "cuda/norm_params.h"

namespace fastnorm::cuda {

// Multiplier and shift of a divisor of at least 2, exact for dividends below 2^31.
Divisor make_divisor(uint32_t value);

NormParams make_params(const NormDesc& desc, const NormPlan& plan);

// Of how many of `calls`, from the first on, one grid takes care: 1 or 2.
size_t calls_together(std::span<const NormCall> calls);

// The grids that all of them take.
GridCount count_grids(std::span<const NormCall> calls);

// The grid of one or two calls.
struct Grid {
  GridForm form;
  uint32_t x, y;
  uint32_t first_blocks;  // kHeads: of x, the first call's
};
Grid grid_of(std::span<const NormCall> calls);

// What a grid of the other forms than kRows gets.
NormPairParams make_pair_params(std::span<const NormCall> calls, const Grid& grid);

}  // namespace fastnorm::cuda
