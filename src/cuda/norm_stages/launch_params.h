// From a described and planned call with stages to what its kernel gets. CUDA-free.
#pragma once

#include "core/norm/plan.h"
#include "core/norm/stages.h"
#include "cuda/norm/launch_params.h"
#include "cuda/norm_stages/params.h"

namespace fastnorm::cuda {

// The parameters of a general kernel.
NormStagesParams make_norm_stages_params(const NormDesc& desc, const NormPlan& plan);

// The parameters of a kernel that holds rows.
HeldStagesParams make_held_stages_params(const NormDesc& desc, const NormPlan& plan);

struct NormStagesFamily;

// The launch of a call with stages.
template <typename Use>
fastnorm_status launch_stages(const NormCall& call, const ArchSpec& arch, Use use) {
  const NormDesc& desc = *call.desc;
  const NormPlan& plan = *call.plan;
  const StagesVariant& variant = arch.stages->entries[plan.index].variant;
  Launch<NormStagesFamily> launch = {plan.index, {}};
  launch.shape.blocks_x = static_cast<uint32_t>(plan.blocks);
  launch.shape.threads = static_cast<uint32_t>(plan.entry->tile.threads * plan.rows_per_block);
  launch.shape.early = (desc.flags & kPdlWait) != 0 && arch.launches_early();
  if (variant.is_rotated()) return use(launch, [&] { return make_params(desc, plan); });
  if (variant.is_held()) return use(launch, [&] { return make_held_stages_params(desc, plan); });
  return use(launch, [&] { return make_norm_stages_params(desc, plan); });
}

}  // namespace fastnorm::cuda
