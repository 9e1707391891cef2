// From a described and planned call with stages to what its kernel gets. CUDA-free.
#pragma once

#include "core/norm_plan.h"
#include "core/norm_stages.h"
#include "cuda/arch.h"
#include "cuda/norm/launch_params.h"
#include "cuda/norm_stages/params.h"

namespace fastnorm::cuda {

// Of a plan on a general kernel.
NormStagesParams make_norm_stages_params(const NormDesc& desc, const NormPlan& plan);

// Of a plan on a held kernel.
HeldStagesParams make_held_stages_params(const NormDesc& desc, const NormPlan& plan);

// Calls `use` with what the plan's kernel on `arch` gets.
template <typename Use>
auto visit_stages_params(const NormDesc& desc, const NormPlan& plan, const ArchSpec& arch,
                         Use use) {
  const StagesVariant& variant = arch.stages->entries[plan.index].variant;
  if (variant.is_rotated()) return use(make_params(desc, plan));
  if (variant.is_held()) return use(make_held_stages_params(desc, plan));
  return use(make_norm_stages_params(desc, plan));
}

}  // namespace fastnorm::cuda
