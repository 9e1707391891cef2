// From a described and planned backward pass to what its kernels get. CUDA-free.
#pragma once

#include "core/norm_backward_plan.h"
#include "cuda/norm_backward/params.h"

namespace fastnorm::cuda {

// Of one launch.
NormBackwardParams make_step_params(const NormBackwardDesc& desc, const NormBackwardPlan& plan,
                                    const NormBackwardStep& step, void* workspace);

}  // namespace fastnorm::cuda
