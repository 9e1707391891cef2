// From a described norm_heads call to ranges of tokens on the CPU.
#pragma once

#include <cstdint>

#include "core/norm_heads/desc.h"
#include "cpu/isa.h"
#include "cpu/norm_heads/params.h"

namespace fastnorm::cpu {

// In the order of NormHeadsKernels.
inline constexpr const char* kNormHeadsNames[] = {"f32", "f16", "bf16"};

struct NormHeadsTask {
  NormHeadsKernel kernel;
  NormHeadsParams params;
};

// The tables in the form that kernels use.
RopeParams rope_params(const RopeTables& tables);

NormHeadsTask make_norm_heads_task(const NormHeadsDesc& desc, const IsaKernels& isa);

// A fastnorm_range_fn; `task` is a NormHeadsTask.
void run_norm_heads_range(void* task, int64_t begin, int64_t end);

}  // namespace fastnorm::cpu
