// The functions of gates and their derivatives. The function is the same for all threads, so
// branches on it are, too.
#pragma once

#include "cuda/common/activation.h"
#include "cuda/common/functions.cuh"

namespace fastnorm::cuda {

// silu(z) is z * sigmoid(z) of one sequence, where z is not below its clamp; sigmoid's result there
// does not change. kTanh: the function may be tanh.
template <bool kTanh = true, int kCount>
__device__ __forceinline__ void activate(float (&v)[kCount], StageFunction function) {
  if (function == StageFunction::kIdentity) return;
  if (kTanh && function == StageFunction::kTanh) {
#pragma unroll
    for (float& z : v) z = hyperbolic_tangent(z);
    return;
  }
  const bool is_silu = function == StageFunction::kSilu;
#pragma unroll
  for (float& z : v) {
    const float kept = at_least(z, -110.0f);
    z = over_one_and_power(kept, is_silu ? kept : 1.0f);
  }
}

// The derivative, in place. c = sigmoid(-v) is 1 - s without cancellation.
template <int kCount>
__device__ __forceinline__ void activation_slope(float (&v)[kCount], StageFunction function) {
#pragma unroll
  for (float& z : v) {
    if (function == StageFunction::kIdentity) {
      z = 1.0f;
      continue;
    }
    if (function == StageFunction::kTanh) z = __fadd_rn(z, z);
    z = at_most(at_least(z, -110.0f), 110.0f);
    const float s = sigmoid(z), c = sigmoid(__fsub_rn(0.0f, z));
    z = function == StageFunction::kSilu
            ? __fmul_rn(s, __fmaf_rn(z, c, 1.0f))
            : __fmul_rn(function == StageFunction::kTanh ? __fmul_rn(4.0f, s) : s, c);
  }
}

}  // namespace fastnorm::cuda
