// From a described and planned call to the kernel's parameters. Needs no CUDA.
#pragma once

#include <span>

#include "core/backend.h"
#include "cuda/norm/params.h"

namespace fastnorm::cuda {

// Multiplier and shift of a divisor of at least 2, exact for every 32-bit dividend.
Divisor make_divisor(uint32_t value);

NormCallParams make_params(const NormDesc& desc, const NormPlan& plan);
// How rows of n columns are rotated before their codes.
RotationParams rotation_of(const QuantDesc& quant, int64_t n);
// Where x and the residual are, and their rows, for code that takes any layout.
NormCallParams make_input_params(const NormDesc& desc);

// Of 16, 8, 4 and 2 bytes, the widest access that all of `bits` allow.
uint8_t access_bytes(uint64_t bits);

// How many of `calls`, from the first on, one grid covers: 1 or 2.
size_t calls_together(std::span<const NormCall> calls);

// The grids of all calls.
GridCount count_grids(std::span<const NormCall> calls);

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

// The parameters of grids that are not GridForm::kRows.
NormPairParams make_pair_params(std::span<const NormCall> calls, const Grid& grid);

}  // namespace fastnorm::cuda
