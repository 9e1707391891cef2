// exp, sigmoid, silu and tanh as fixed sequences of operations, with the same bits on every GPU and
// CPU. The CPU's form (src/cpu/common/functions-inl.h) explains each step.
#pragma once

#include <cfloat>
#include <cstdint>

#include "cuda/common/ptx/math.cuh"

namespace fastnorm::cuda {

// exp(x) = significand * first * second, the latter two powers of two.
struct Power {
  float significand, first, second;
};

// 2^n from the lowest 9 bits of n.
__device__ __forceinline__ float power_of_two(uint32_t n) {
  return __uint_as_float((n << 23) + 0x3f800000);
}

// exp(x) / 2^n for n = x / ln(2), rounded.
__device__ __forceinline__ float significand_of_power(float x, float n) {
  const float r = __fmaf_rn(n, 0x1.05c610p-29f, __fmaf_rn(n, -0x1.62e430p-1f, x));
  float p = __fmaf_rn(0x1.6a23cep-10f, r, 0x1.123a20p-7f);
  p = __fmaf_rn(p, r, 0x1.5558f2p-5f);
  p = __fmaf_rn(p, r, 0x1.555492p-3f);
  p = __fmaf_rn(p, r, 0x1.fffffcp-2f);
  p = __fmaf_rn(p, r, 1.0f);
  return __fmaf_rn(p, r, 1.0f);
}

// x in [-110, 90], or NaN.
__device__ __forceinline__ Power power_of_e(float x) {
  constexpr float kUnits = 0x1.8p23f;
  const float units = __fmaf_rn(x, 0x1.715476p+0f, kUnits);
  const float p = significand_of_power(x, __fsub_rn(units, kUnits));
  // The bits of kUnits end in more zeros than count here.
  const uint32_t whole = __float_as_uint(units), half = whole >> 1;
  return {p, power_of_two(half), power_of_two(whole - half)};
}

// exp(x) for x in [-80, 80], where one product with 2^n is exact: n is added to the exponent.
__device__ __forceinline__ float small_power_of_e(float x) {
  constexpr float kUnits = 0x1.8p23f;
  const float from_units = __fmaf_rn(x, 0x1.715476p+0f, kUnits);
  const float p = significand_of_power(x, __fsub_rn(from_units, kUnits));
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(from_units) << 23));
}

// NaN stays NaN.
__device__ __forceinline__ float at_least(float v, float low) { return v < low ? low : v; }
__device__ __forceinline__ float at_most(float v, float high) { return v > high ? high : v; }

__device__ __forceinline__ float exponential(float x) {
  const Power p = power_of_e(at_most(at_least(x, -110.0f), 90.0f));
  return __fmul_rn(__fmul_rn(p.significand, p.first), p.second);
}

// a / d for d in [1, 2], or NaN, as __fdiv_rn but without its branch. a is a factor of more than
// 2^-102, or d is 2.
__device__ __forceinline__ float quotient_in_range(float a, float d) {
  float r = ptx::rcp_approx(d);
  r = __fmaf_rn(__fmaf_rn(-d, r, 1.0f), r, r);
  // Inf is greater, so that what is missing is Inf, too. What is too much of 0 is 0, whose negative
  // keeps the sign of q.
  const float q = fminf(__fmul_rn(a, r), FLT_MAX);
  return __fmaf_rn(-__fmaf_rn(d, q, -a), r, q);
}

// scale / (1 + exp(-z)) for scale 1 or z.
__device__ __forceinline__ float over_one_and_power(float z, float scale) {
  const Power p = power_of_e(ptx::max_nan(-fabsf(z), -110.0f));
  const float most = __fmul_rn(p.significand, p.first);
  const float e = __fmul_rn(most, p.second);
  const float numerator = __fmul_rn(scale, z < 0.0f ? most : 1.0f);
  return __fmul_rn(quotient_in_range(numerator, __fadd_rn(1.0f, e)), z < 0.0f ? p.second : 1.0f);
}

__device__ __forceinline__ float sigmoid(float z) { return over_one_and_power(z, 1.0f); }

__device__ __forceinline__ float silu(float z) {
  const float kept = at_least(z, -110.0f);
  return over_one_and_power(kept, kept);
}

__device__ __forceinline__ float hyperbolic_tangent(float x) {
  const float a = fabsf(x), square = __fmul_rn(a, a);
  float p = __fmaf_rn(-0x1.75d50cp-8f, square, 0x1.5223dep-6f);
  p = __fmaf_rn(p, square, -0x1.b83bf4p-5f);
  p = __fmaf_rn(p, square, 0x1.110724p-3f);
  p = __fmaf_rn(p, square, -0x1.555532p-2f);
  const float below = __fmaf_rn(p, __fmul_rn(square, a), a);
  const float e = exponential(__fadd_rn(a, a));
  const float above = __fsub_rn(1.0f, __fdiv_rn(2.0f, __fadd_rn(e, 1.0f)));
  const float result = a < 0.625f ? below : above;
  return __uint_as_float(__float_as_uint(result) | (__float_as_uint(x) & 0x80000000));
}

}  // namespace fastnorm::cuda
