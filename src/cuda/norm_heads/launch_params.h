// From a described and planned norm_heads call to what its kernel gets. CUDA-free.
#pragma once

#include "core/norm_heads_plan.h"
#include "cuda/norm_heads/params.h"

namespace fastnorm::cuda {

// Of a plan on a general kernel.
NormHeadsParams make_norm_heads_params(const NormHeadsDesc& desc, const NormHeadsPlan& plan);

}  // namespace fastnorm::cuda
