// A normalisation on the CPU: from its description to rows on threads.
#pragma once

#include "core/norm/plan.h"
#include "cpu/isa.h"
#include "cpu/norm/kernels.h"
#include "cpu/norm/params.h"

namespace fastnorm::cpu {

// What a tensor that is there has, for an x of dtype of_x.
OperandType type_of(Dtype dtype, Dtype of_x);

// The kernels of a machine, by the number of their entry.
struct ChosenNormKernels {
  const NormKernels* all;
  const NormKernels* bf16;  // some that the machine's AVX512_BF16 makes faster; nullptr = none

  NormKernel operator[](int32_t index) const {
    if (bf16 != nullptr && bf16->at[index] != nullptr) return bf16->at[index];
    return all->at[index];
  }
};
ChosenNormKernels norm_kernels(const IsaKernels& isa, bool avx512_bf16);

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
