// 1 / sqrt(v) as two correctly rounded operations, without the library functions' calls and spills.
//
// r, the hardware's approximation of 1 / sqrt(v), gives the root by one Newton step on the exact
// residual. A second step refines r, off the root's chain. Then r is near enough to the root's
// reciprocal: with e = 1 - q * root, q * (1 + e + e^2) rounds to it. Two things are needed for
// that. The first is e^2: with e alone 3 to 6 of the 2^24 significands of two octaves round
// wrongly, which of them depends on r. The second is that the refinement rounds up: the greatest
// root's reciprocal lies just above the middle between two numbers and is not reached from below.
// For every r within 4 units of the nearest one the reciprocal is right wherever the root is
// (tests/simt/root_test.cpp). In (2^-90, 2^90) the result equals __fdiv_rn(1, __fsqrt_rn(v));
// outside, v is scaled by an even power of two first, which is exact. Equal on all 2^31 bit
// patterns (selftest proves it again on the GPU at hand).
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
