// The functions of gates and their derivatives. The function is the same for all threads, so
// branches on it are, too.
#pragma once

#include "cuda/common/activation.h"
#include "cuda/common/functions.cuh"
#include "cuda/common/ptx/math.cuh"

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

// value / d for d in [1, 2]. `reciprocal` is 1 / d to a unit in the last place. A quotient of 0
// keeps its sign.
__device__ __forceinline__ float quotient_by(float d, float reciprocal, float value) {
  const float q = __fmul_rn(value, reciprocal);
  return __fmaf_rn(-__fmaf_rn(q, d, -value), reciprocal, q);
}

// silu(z) or sigmoid(z), and the derivative.
struct ValueAndSlope {
  float value, slope;
};

inline constexpr float kMostForOnePower = 80.0f;

// Both with one power and one reciprocal, for |z| <= kMostForOnePower and z of 16 bits. near(d) is
// 1 / d to two units. The bits are those of activate() and activation_slope(): there are few z, and
// a test goes over all of them (tests/simt/functions_test.cpp).
template <typename Near>
__device__ __forceinline__ ValueAndSlope value_and_slope(float z, bool is_silu, Near near) {
  const float e = small_power_of_e(-fabsf(z)), d = __fadd_rn(1.0f, e);
  const float first = near(d);
  const float reciprocal = __fmaf_rn(first, __fmaf_rn(-d, first, 1.0f), first);
  const float high = __fmaf_rn(reciprocal, __fmaf_rn(-d, reciprocal, 1.0f), reciprocal);
  const float low = quotient_by(d, reciprocal, e);
  const bool negative = z < 0.0f;
  const float s = negative ? low : high, c = negative ? high : low;
  if (!is_silu) return {s, __fmul_rn(s, c)};
  return {quotient_by(d, reciprocal, __fmul_rn(z, negative ? e : 1.0f)),
          __fmul_rn(s, __fmaf_rn(z, c, 1.0f))};
}

template <int kCount>
__device__ __forceinline__ void activate_small(float (&v)[kCount], float (&slope)[kCount],
                                               bool is_silu) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const ValueAndSlope at =
        value_and_slope(v[i], is_silu, [](float d) { return ptx::rcp_approx(d); });
    v[i] = at.value, slope[i] = at.slope;
  }
}

// The activations of many z of 16 bits: `v` becomes the values. kBranches: the code of either
// function is there, in place of one code that selects.
template <bool kBranches, int kCount>
__device__ __forceinline__ void activate_with_slope(float (&v)[kCount], float (&slope)[kCount],
                                                    StageFunction function) {
  const bool is_silu = function == StageFunction::kSilu;
  bool small = true;  // and no NaN
#pragma unroll
  for (const float z : v) small = small && fabsf(z) <= kMostForOnePower;
  if (__builtin_expect(small, 1)) {
    if constexpr (kBranches) {
      if (is_silu) {
        activate_small(v, slope, true);
      } else {
        activate_small(v, slope, false);
      }
    } else {
      activate_small(v, slope, is_silu);
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) {
    float of[1] = {v[0]};
#pragma unroll
    for (int j = 1; j < kCount; ++j) of[0] = j == i ? v[j] : of[0];
    float slope_of[1] = {of[0]};
    activate<false>(of, function), activation_slope(slope_of, function);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      v[j] = j == i ? of[0] : v[j];
      slope[j] = j == i ? slope_of[0] : slope[j];
    }
  }
}

}  // namespace fastnorm::cuda
