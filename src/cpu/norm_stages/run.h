// A call with stages on the CPU: from its description to rows on threads.
#pragma once

#include <cstdint>

#include "core/norm/desc.h"
#include "core/norm/plan.h"
#include "cpu/isa.h"
#include "cpu/norm_stages/params.h"

namespace fastnorm::cpu {

struct StagesTask {
  StagesKernel kernel;
  StagesParams params;
};

Activation activation_of(fastnorm_activation activation);

// Computes in the caller's floating-point mode: see fp_mode.h.
StagesTask make_stages_task(const NormDesc& desc, const NormPlan& plan, const IsaKernels& isa);

// A fastnorm_range_fn; `task` is a StagesTask.
void run_stages_range(void* task, int64_t begin, int64_t end);

}  // namespace fastnorm::cpu
