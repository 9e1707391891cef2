// 1 / sqrt(v) as two correctly rounded operations, without the library functions' calls and spills.
//
// The approximations of the root and of the reciprocal are each refined by one Newton step on the exact residual. In
// (2^-90, 2^90) the result equals __fdiv_rn(1, __fsqrt_rn(v)); outside, v is scaled by an even power of two first, which is exact.
// Equal on all 2^31 bit patterns (selftest proves it again on the GPU at hand). The reciprocal needs its own approximation: seeded
// by the root's, 509 patterns round wrongly.
#pragma once

#include "cuda/ptx/math.cuh"

namespace fastnorm::cuda {

__device__ __forceinline__ float reciprocal_root_in_range(float v) {
  const float r = ptx::rsqrt_approx(v);
  const float g = __fmul_rn(v, r);
  const float h = __fmul_rn(r, 0.5f);
  const float root = __fmaf_rn(__fmaf_rn(-g, g, v), h, g);
  const float q = ptx::rcp_approx(root);
  return __fmaf_rn(q, __fmaf_rn(-q, root, 1.0f), q);
}

__device__ __forceinline__ float reciprocal_root(float v) {
  float y = reciprocal_root_in_range(v);
  if (__builtin_expect(!(v > 0x1p-90f && v < 0x1p90f), 0)) {
    const bool small = v < 1.0f;
    y = __fmul_rn(reciprocal_root_in_range(__fmul_rn(v, small ? 0x1p96f : 0x1p-96f)),
                  small ? 0x1p48f : 0x1p-48f);
    if (v == 0.0f) y = __int_as_float(0x7f800000);
    if (v == __int_as_float(0x7f800000)) y = 0.0f;
  }
  return y;
}

}  // namespace fastnorm::cuda
