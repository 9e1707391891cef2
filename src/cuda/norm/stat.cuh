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

// One vector's share of the sum of squares, of s - mean for LAYER. Positions from `count` on are
// padding and add nothing.
template <class Slots, class R>
__device__ __forceinline__ float squares(const float (&s)[Slots::T::kPerVector], float mean,
                                         int count, const R& rounding) {
  constexpr int kPerVector = Slots::T::kPerVector;
  float d[kPerVector];
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) {
    d[i] = s[i];
    if constexpr (Slots::kStat == Stat::kLayer) d[i] = rounding.step(__fsub_rn(s[i], mean));
    if constexpr (Slots::kStat == Stat::kLayer && Slots::kAccess == Access::kAny) {
      if (i >= count) d[i] = 0.0f;
    }
  }
  if (rounding.every_step) {
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) d[i] = rounding.step(__fmul_rn(d[i], d[i]));
    return vector_sum(d);
  }
  const float q = vector_sum_of_squares(d);
  return Slots::kStat == Stat::kLayer && count <= 0 ? 0.0f : q;
}

// The same of the row's short vector, by the thread that has it: no other thread tests positions.
template <class Slots, class Tile, class Held, class Reach>
__device__ __forceinline__ float short_squares(const Held& held, float mean, const Reach& reach) {
  constexpr int kPerVector = Slots::T::kPerVector;
  float d[kPerVector];
  held.pick(d, reach.last_register());
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) d[i] = i < reach.last_count() ? __fsub_rn(d[i], mean) : 0.0f;
  return vector_sum_of_squares(d);
}

template <class R>
__device__ __forceinline__ float mean_of(float sum, const NormParams& p, const R& rounding) {
  return rounding.step(__fmul_rn(sum, p.inv_n));
}

template <class R>
__device__ __forceinline__ float rstd_of(float sum, const NormParams& p, const R& rounding) {
  const float variance = rounding.step(__fmul_rn(sum, p.inv_n));
  return rounding.step(reciprocal_root(rounding.step(__fadd_rn(variance, p.eps))));
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
