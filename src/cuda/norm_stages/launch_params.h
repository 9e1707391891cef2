// From a described and planned call with stages to what its kernel gets. CUDA-free.
#pragma once

#include "core/norm_plan.h"
#include "cuda/norm_stages/params.h"

namespace fastnorm::cuda {

// Of a plan on a general kernel.
NormStagesParams make_norm_stages_params(const NormDesc& desc, const NormPlan& plan);

// Of a plan on a held kernel.
HeldStagesParams make_held_stages_params(const NormDesc& desc, const NormPlan& plan);

}  // namespace fastnorm::cuda
