// 1 / sqrt(v) as two correctly rounded operations, without the calls and spills of library
// functions.
//
// r is the hardware's approximation of 1 / sqrt(v). One Newton step on the exact residual gives the
// root. A second step refines r in parallel. r is then close enough to the root's reciprocal: with
// e = 1 - q * root, q * (1 + e + e^2) rounds to it. Two details matter. With e alone, 3 to 6 of the
// 2^24 significands of two octaves round wrongly, depending on r. And the refinement must round up:
// the greatest root's reciprocal is just above the middle between two numbers, and cannot be
// reached from below. For every r within 4 units of the nearest one, the reciprocal is right if the
// root is (tests/simt/root_test.cpp). In (2^-90, 2^90) the result equals __fdiv_rn(1,
// __fsqrt_rn(v)). Outside, v is first scaled by an even power of two, which is exact. Equal on all
// 2^31 bit patterns; `fastnorm selftest` proves it again on its GPU.
#pragma once

#include "cuda/common/ptx/math.cuh"

namespace fastnorm::cuda {

__device__ __forceinline__ float reciprocal_root_in_range(float v) {
  const float r = ptx::rsqrt_approx(v);
  const float g = __fmul_rn(v, r);
  const float h = __fmul_rn(r, 0.5f);
  const float root = __fmaf_rn(__fmaf_rn(-g, g, v), h, g);
  const float q = __fmaf_ru(h, __fmaf_rn(-g, r, 1.0f), r);
  const float e = __fmaf_rn(-q, root, 1.0f);
  return __fmaf_rn(q, __fmaf_rn(e, e, e), q);
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
