// Stat: what is reduced over the row, and the row normalised by it.
#pragma once

#include "cuda/common/root.cuh"
#include "cuda/norm/rounding.cuh"

namespace fastnorm::cuda {

// Sums inside a vector: even and odd positions form one chain each, in increasing position.

template <int kCount>
__device__ __forceinline__ float vector_sum(const float (&a)[kCount]) {
  float even = a[0], odd = a[1];
#pragma unroll
  for (int i = 2; i < kCount; i += 2) {
    even = __fadd_rn(even, a[i]);
    odd = __fadd_rn(odd, a[i + 1]);
  }
  return __fadd_rn(even, odd);
}

template <int kCount>
__device__ __forceinline__ float vector_sum_of_squares(const float (&a)[kCount]) {
  float even = __fmul_rn(a[0], a[0]), odd = __fmul_rn(a[1], a[1]);
#pragma unroll
  for (int i = 2; i < kCount; i += 2) {
    even = __fmaf_rn(a[i], a[i], even);
    odd = __fmaf_rn(a[i + 1], a[i + 1], odd);
  }
  return __fadd_rn(even, odd);
}

// One vector's share of the sum of squares, or of their rounded values.
template <class R, int kCount>
__device__ __forceinline__ float squares(float (&d)[kCount], const R& rounding) {
  if (rounding.every_step) {
#pragma unroll
    for (float& f : d) f = rounding.step(__fmul_rn(f, f));
    return vector_sum(d);
  }
  return vector_sum_of_squares(d);
}

// LAYER: one vector's share of the sum of s - from, and with kSquares of its squares. Positions
// from `count` on are padding and add nothing; `partial`: some of a vector may be.
template <bool kPartial, bool kSquares, class R, int kCount>
__device__ __forceinline__ Moments moments(const float (&s)[kCount], float from, int count,
                                           const R& rounding) {
  float d[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    d[i] = __fsub_rn(s[i], from);
    if constexpr (kSquares) d[i] = rounding.step(d[i]);
    if constexpr (kPartial) d[i] = i < count ? d[i] : 0.0f;
  }
  Moments m = {vector_sum(d), 0.0f};
  if constexpr (kSquares) m.squares = squares(d, rounding);
  if (!kPartial && count <= 0) m = {0.0f, 0.0f};
  return m;
}

// What LAYER subtracts from a row before its first sum: the row's first element. A chain in T sums
// the row itself, and x - -0 is x.
template <class R>
__device__ __forceinline__ float sum_origin(float first, const R& rounding) {
  return rounding.every_step ? -0.0f : first;
}

// The mean before its correction, from the first sum.
template <class R>
__device__ __forceinline__ float first_mean(float origin, float sum, const NormParams& p,
                                            const R& rounding) {
  return rounding.step(__fadd_rn(origin, __fmul_rn(positive_zero(sum), p.inv_n)));
}

template <class R>
__device__ __forceinline__ float rstd_of(float mean_square, const NormParams& p,
                                         const R& rounding) {
  const float variance = rounding.step(mean_square);
  return rounding.step(reciprocal_root(rounding.step(__fadd_rn(variance, p.eps))));
}

// LAYER: the mean, corrected, and rstd, from the sums about the first mean.
struct MeanRstd {
  float mean, rstd;
};
template <class R>
__device__ __forceinline__ MeanRstd finish_moments(float mean, Moments row, const NormParams& p,
                                                   const R& rounding) {
  // A chain in T corrects nothing: x + -0 is x.
  const float delta = rounding.every_step ? -0.0f : __fmul_rn(positive_zero(row.sum), p.inv_n);
  const float variance = __fmaf_rn(-delta, delta, __fmul_rn(row.squares, p.inv_n));
  return {__fadd_rn(mean, delta), rstd_of(variance < 0.0f ? 0.0f : variance, p, rounding)};
}

// t = (s - mean) * rstd for one vector; t may be s.
template <class Slots, int kCount, class R>
__device__ __forceinline__ void normalize_vector(float (&t)[kCount], const float (&s)[kCount],
                                                 float mean, float rstd, const R& rounding) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) t[i] = s[i];
  if constexpr (Slots::kSource == Source::kAdd) rounding.applied(t);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (Slots::kStat == Stat::kLayer) t[i] = rounding.step(__fsub_rn(t[i], mean));
    t[i] = __fmul_rn(t[i], rstd);
  }
  rounding.normalized(t);
}

}  // namespace fastnorm::cuda
