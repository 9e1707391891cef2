// A row normalised by its statistics, and its weight and bias applied, in registers.
#pragma once

#include "cuda/common/rounding.cuh"

namespace fastnorm::cuda {

template <int kCount>
__device__ __forceinline__ void multiply(float (&v)[kCount], const float (&factor)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = __fmul_rn(v[i], factor[i]);
}

template <int kCount>
__device__ __forceinline__ void scale_values(float (&z)[kCount], float factor) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) z[i] = __fmul_rn(z[i], factor);
}

// (s - mean) * rstd; without rstd if the weight takes it.
template <class R>
__device__ __forceinline__ float normalized_value(float s, float mean, float rstd, bool layer,
                                                  const R& rounding) {
  if (layer) s = rounding.step(__fsub_rn(s, mean));
  return rounding.factor_first ? s : __fmul_rn(s, rstd);
}
template <int kCount, class R>
__device__ __forceinline__ void normalize_values(float (&s)[kCount], float mean, float rstd,
                                                 bool layer, const R& rounding) {
  if (layer) {
#pragma unroll
    for (float& value : s) value = rounding.step(__fsub_rn(value, mean));
  }
  if (!rounding.factor_first) scale_values(s, rstd);
}

// t * (weight + offset) + bias. An absent weight is 1 and an absent bias is -0, so they change no
// bit. If t is without rstd, the weight is multiplied by it.
template <int kCount, class R>
__device__ __forceinline__ void apply(float (&z)[kCount], const float (&t)[kCount],
                                      const float (&weight)[kCount], const float (&bias)[kCount],
                                      float weight_offset, float rstd, const R& rounding) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float g = rounding.step(__fadd_rn(weight[i], weight_offset));
    if (rounding.factor_first) g = __fmul_rn(rstd, g);
    if (rounding.every_step) {
      z[i] = rounding.step(__fadd_rn(rounding.step(__fmul_rn(t[i], g)), bias[i]));
    } else {
      z[i] = __fmaf_rn(t[i], g, bias[i]);
    }
  }
}

// apply() for one element.
template <class R>
__device__ __forceinline__ float applied_value(float t, float weight, float bias,
                                               float weight_offset, float rstd, const R& rounding) {
  const float one[1] = {t}, w[1] = {weight}, b[1] = {bias};
  float z[1];
  apply(z, one, w, b, weight_offset, rstd, rounding);
  return z[0];
}

// t * (weight + offset), in place.
template <int kCount>
__device__ __forceinline__ void weigh_values(float (&t)[kCount], const float (&weight)[kCount],
                                             float weight_offset) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) t[i] = __fmul_rn(t[i], __fadd_rn(weight[i], weight_offset));
}

}  // namespace fastnorm::cuda
