// A normalisation on the CPU: from its description to rows on threads.
#pragma once

#include "core/backend.h"
#include "cpu/isa.h"
#include "cpu/norm_params.h"

namespace fastnorm::cpu {

// The kernel's parameters. Computes in the caller's floating-point mode, see fp_mode.h.
NormParams make_params(const NormDesc& desc, const NormPlan& plan, const IsaKernels& isa,
                       int64_t l2_bytes);

// The rows of one call, for a parallel loop.
struct NormTask {
  NormKernel kernel;
  NormParams params;
  int64_t rows;
};

// A fastnorm_range_fn: normalises the rows [begin, end) of a NormTask.
void run_norm_range(void* task, int64_t begin, int64_t end);

}  // namespace fastnorm::cpu
