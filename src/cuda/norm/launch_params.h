// From a described and planned call to what the kernel gets. CUDA-free.
#pragma once

#include <span>

#include "core/backend.h"
#include "cuda/norm/params.h"

namespace fastnorm::cuda {

// Multiplier and shift of a divisor of at least 2, exact for dividends below 2^31.
Divisor make_divisor(uint32_t value);

NormCallParams make_params(const NormDesc& desc, const NormPlan& plan);
// Where x and the residual are, and their rows, for code that takes any layout.
NormCallParams make_input_params(const NormDesc& desc);

// Of 16, 8, 4 and 2 bytes, the widest access that all of `bits` allow.
uint8_t access_bytes(uint64_t bits);

// Of how many of `calls`, from the first on, one grid takes care: 1 or 2.
size_t calls_together(std::span<const NormCall> calls);

// The grids that all of them take.
GridCount count_grids(std::span<const NormCall> calls);

// The grid of one or two calls. Given by address: in registers its parts would have to be put
// together and taken apart.
struct Grid {
  GridForm form;
  uint32_t x, y;
  uint32_t first_blocks;  // kHeads: of x, the first call's
};
void find_grid(std::span<const NormCall> calls, Grid* grid);

// One of GridForm::kHeads, where heads, [tokens, heads, d], are for it: of as many tokens in both
// calls, and few threads idle. `second`: nullptr = there is none.
bool find_heads_grid(const NormDesc& first, const NormDesc* second, int rows_per_block, Grid* grid);

// What a grid of the other forms than kRows gets.
NormPairParams make_pair_params(std::span<const NormCall> calls, const Grid& grid);

}  // namespace fastnorm::cuda
