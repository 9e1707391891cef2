// A part of a backward call on the CPU: from its description to ranges of work on threads.
#pragma once

#include <cstdint>

#include "core/norm_backward/desc.h"
#include "core/norm_backward/plan.h"
#include "cpu/isa.h"
#include "cpu/norm_backward/params.h"

namespace fastnorm::cpu {

struct NormBackwardTask {
  NormBackwardRange range;
  NormBackwardParams params;
};

// Rows or blocks first, which norm_backward_units() counts; then, where there are sums, their fold.
NormBackwardTask make_norm_backward_task(const NormBackwardDesc& desc, const NormBackwardPlan& plan,
                                         const IsaKernels& isa, void* workspace);

NormBackwardRange norm_backward_fold(const NormBackwardDesc& desc, const IsaKernels& isa);
int64_t norm_backward_fold_units(const NormBackwardDesc& desc);
int64_t norm_backward_fold_grain(const NormBackwardPlan& plan);

// A fastnorm_range_fn; `task` is a NormBackwardTask.
void run_norm_backward_range(void* task, int64_t begin, int64_t end);

}  // namespace fastnorm::cpu
