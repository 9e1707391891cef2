// From a described and planned call to its launch and the kernel's parameters. Needs no CUDA.
#pragma once

#include <cstddef>
#include <span>

#include "core/common/pdl.h"
#include "core/norm/grid.h"
#include "core/norm/plan.h"
#include "cuda/launch.h"
#include "cuda/norm/params.h"

namespace fastnorm::cuda {

// Multiplier and shift of a divisor of at least 2, exact for every 32-bit dividend.
Divisor make_divisor(uint32_t value);
// A divisor for kernels that know the quotient by 1.
inline Divisor divisor_or_one(uint32_t value) {
  return value == 1 ? Divisor{1, 0, 0} : make_divisor(value);
}

// A kernel's address of what a description has as bytes.
inline char* kernel_pointer(const std::byte* data) {
  return const_cast<char*>(reinterpret_cast<const char*>(data));
}

NormCallParams make_params(const NormDesc& desc, const NormPlan& plan);
// The parameters for code that takes every call. With Sink::kStore those of codes are not set.
NormCallParams make_general_params(const NormDesc& desc, Sink sink = Sink::kQuant);
// How rows of n columns are rotated before their codes.
RotationParams rotation_of(const QuantDesc& quant, int64_t n);
// Where x and the residual are, and their rows, for code that takes any layout.
NormCallParams make_input_params(const NormDesc& desc);

// The widest access, of 16, 8, 4 and 2 bytes, that all of `bits` allow.
uint8_t access_bytes(uint64_t bits);

// The parameters of grids that are not GridForm::kRows.
NormPairParams make_pair_params(std::span<const NormCall> calls, const Grid& grid);

struct NormFamily;

// The one launch of calls that share it, and have no stages.
template <typename Use>
fastnorm_status launch_together(std::span<const NormCall> calls, const ArchSpec& arch, Use use) {
  const NormDesc& desc = *calls[0].desc;
  const NormPlan& plan = *calls[0].plan;
  const Tile tile = plan.entry->tile;
  Grid grid;
  find_grid(calls, &grid);
  Launch<NormFamily> launch = {norm_kernel_number(plan.index, grid.form), {}};
  LaunchShape& shape = launch.shape;
  shape.blocks_x = grid.x, shape.blocks_y = grid.y;
  shape.threads = static_cast<uint32_t>(tile.threads * plan.rows_per_block);
  shape.shared_bytes = static_cast<uint32_t>(launch_shared_bytes(plan.entry->key, tile));
  shape.cluster = static_cast<uint32_t>(tile.blocks);
  shape.early = (desc.flags & kPdlWait) != 0 && arch.launches_early();
  if (grid.form == GridForm::kRows) return use(launch, [&] { return make_params(desc, plan); });
  return use(launch, [&] { return make_pair_params(calls, grid); });
}

}  // namespace fastnorm::cuda
