#include "core/norm/grid.h"

#include <bit>

namespace fastnorm {

size_t calls_together(std::span<const NormCall> calls) {
  constexpr uint64_t kMostBlocks = 0x7fffffff;
  if (calls.size() < 2 || !runs_pairs(*calls[0].plan->entry)) return 1;
  // Their kernels know two indices of a row: [tokens, heads, d].
  const bool alike = calls[0].desc->outer_rank <= 2 && calls[1].desc->outer_rank <= 2 &&
                     calls[0].plan->entry == calls[1].plan->entry &&
                     calls[0].desc->flags == calls[1].desc->flags &&
                     calls[0].plan->blocks + calls[1].plan->blocks <= kMostBlocks;
  return alike ? 2 : 1;
}

bool find_heads_grid(const NormDesc& first, const NormDesc* second, int rows_per_block,
                     Grid* grid) {
  constexpr int64_t kMostAlongY = 65535, kMostBlocks = 0x7fffffff;
  const bool same =
      first.outer_rank == 2 &&
      (second == nullptr || (second->outer_rank == 2 && second->outer[1] == first.outer[1]));
  if (!same || first.outer[1] > kMostAlongY) return false;
  const auto blocks_of = [&](int64_t heads) {
    return (heads + rows_per_block - 1) >> std::countr_zero(static_cast<unsigned>(rows_per_block));
  };
  const int64_t more = second != nullptr ? second->outer[0] : 0,
                first_blocks = blocks_of(first.outer[0]), blocks = first_blocks + blocks_of(more);
  // A third of the threads may be idle. With half of them idle it is slower.
  const bool mostly_idle = 2 * blocks * rows_per_block > 3 * (first.outer[0] + more);
  if (mostly_idle || blocks * first.outer[1] > kMostBlocks) return false;
  *grid = {GridForm::kHeads, static_cast<uint32_t>(blocks), static_cast<uint32_t>(first.outer[1]),
           static_cast<uint32_t>(first_blocks)};
  return true;
}

void find_grid(std::span<const NormCall> calls, Grid* grid) {
  const NormPlan& plan = *calls[0].plan;
  const NormKey& key = plan.entry->key;
  const Tile tile = plan.entry->tile;
  const bool two = calls.size() > 1;
  if (runs_heads(key, tile) &&
      find_heads_grid(*calls[0].desc, two ? calls[1].desc : nullptr, plan.rows_per_block, grid)) {
    return;
  }
  const bool rows = !two && (calls[0].desc->outer_rank == 1 || !knows_indices(key, tile));
  *grid = {rows ? GridForm::kRows : GridForm::kPair,
           static_cast<uint32_t>(plan.blocks + (two ? calls[1].plan->blocks : 0)), 1, 0};
}

GridCount count_grids(std::span<const NormCall> calls, const DeviceFacts& facts) {
  GridCount count = {0, 0};
  if (facts.device_type == FASTNORM_DEVICE_CPU) {
    for (const NormCall& call : calls) ++count.launches, count.blocks += call.plan->blocks;
    return count;
  }
  for (; !calls.empty(); ++count.launches) {
    const size_t together = calls_together(calls);
    Grid grid;
    find_grid(calls.first(together), &grid);
    count.blocks += uint64_t{grid.x} * grid.y;
    calls = calls.subspan(together);
  }
  return count;
}

}  // namespace fastnorm
