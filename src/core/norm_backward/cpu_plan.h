// What a part of a backward call needs on the CPU.
#pragma once

#include <cstdint>

#include "core/common/error.h"
#include "core/norm_backward/desc.h"
#include "core/norm_backward/plan.h"

namespace fastnorm {

// Kernels of the CPU by kind and dtype of x.
inline constexpr const char* kNormBackwardCpuNames[] = {"rms_f32",   "rms_f16",   "rms_bf16",
                                                        "layer_f32", "layer_f16", "layer_bf16"};

// Floats from a block's partial sums to the next block's: a whole number of the vectors of any
// instruction set.
constexpr int64_t norm_backward_partial_stride(int64_t n) { return (n + 63) / 64 * 64; }

// What has the statistics, c1 and c2 of a token's heads in the workspace: four floats.
inline constexpr int64_t kTokenValues = 4;

// Tokens whose values are computed before the rows; 0 where heads have their own.
int64_t norm_backward_tokens(const NormBackwardDesc& desc);
// Tokens that are worth another thread.
int64_t norm_backward_token_grain(const NormBackwardDesc& desc);

// What threads share: a block of rows where there are sums, else a row.
struct NormBackwardUnits {
  int64_t count;
  int64_t grain;  // that are worth another thread
};
NormBackwardUnits norm_backward_units(const NormBackwardDesc& desc);

fastnorm_status plan_norm_backward_cpu(const NormBackwardDesc& desc, const DeviceFacts& facts,
                                       NormBackwardPlan* plan, Error& error);

// Bytes that a part reads and writes at the least, on any device: each tensor once, a dimension of
// stride 0 once.
void count_norm_backward_bytes(const NormBackwardDesc& desc, NormBackwardPlan* plan);

}  // namespace fastnorm
