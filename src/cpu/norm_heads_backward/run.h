// A part of norm_heads_backward on the CPU that norm_backward's kernels cannot do: from its
// description to ranges of work on threads.
#pragma once

#include <cstdint>

#include "core/norm_backward/desc.h"
#include "core/norm_backward/plan.h"
#include "cpu/isa.h"
#include "cpu/norm_heads_backward/params.h"

namespace fastnorm::cpu {

struct NormHeadsBackwardTask {
  NormHeadsBackwardRange tokens, rows;  // rows: or blocks of them, where there are sums
  NormHeadsBackwardRange range;         // what runs
  NormHeadsBackwardParams params;
};

// Where there are tokens with values of their own, those first; then what norm_backward_units()
// counts. The fold of the sums is norm_backward's.
NormHeadsBackwardTask make_norm_heads_backward_task(const NormBackwardDesc& desc,
                                                    const NormBackwardPlan& plan,
                                                    const IsaKernels& isa, void* workspace);

// A fastnorm_range_fn; `task` is a NormHeadsBackwardTask.
void run_norm_heads_backward_range(void* task, int64_t begin, int64_t end);

}  // namespace fastnorm::cpu
