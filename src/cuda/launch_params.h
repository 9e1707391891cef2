// From a described and planned call to what the kernel gets. CUDA-free.
#pragma once

#include "core/norm_desc.h"
#include "core/norm_plan.h"
#include "cuda/norm_params.h"

namespace fastnorm::cuda {

// Multiplier and shift of a divisor of at least 2, exact for dividends below 2^31.
Divisor make_divisor(uint32_t value);

NormParams make_params(const NormDesc& desc, const NormPlan& plan);

}  // namespace fastnorm::cuda
