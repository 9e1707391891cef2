// Stat: what is reduced over the row, and the row normalised by it.
#pragma once

#include "cuda/common/root.cuh"
#include "cuda/norm/rounding.cuh"

namespace fastnorm::cuda {

// Sums inside a vector: even and odd positions form two chains, in increasing position.

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

// One vector's part of the sum of squares. `steps`: the squares are rounded to T.
template <class T, int kCount>
__device__ __forceinline__ float squares(float (&d)[kCount], bool steps) {
  if (steps) {
#pragma unroll
    for (float& f : d) f = T::round(__fmul_rn(f, f));
    return vector_sum(d);
  }
  return vector_sum_of_squares(d);
}

// LAYER: one vector's part of the sums of s - from and of its squares. Positions from `count` on
// are padding and add nothing; they occur only with kPartial. `steps`: a chain in T rounds.
template <class T, bool kPartial, int kCount>
__device__ __forceinline__ Moments moments(const float (&s)[kCount], float from, int count,
                                           bool steps) {
  // The chains of both sums are interleaved, so that few differences are alive.
  float sum[2], square[2];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float d = __fsub_rn(s[i], from);
    if (steps) d = T::round(d);
    if constexpr (kPartial) d = i < count ? d : 0.0f;
    float& chain = sum[i % 2];
    float& power = square[i % 2];
    chain = i < 2 ? d : __fadd_rn(chain, d);
    if (steps) {
      const float q = T::round(__fmul_rn(d, d));
      power = i < 2 ? q : __fadd_rn(power, q);
    } else {
      power = i < 2 ? __fmul_rn(d, d) : __fmaf_rn(d, d, power);
    }
  }
  Moments m = {__fadd_rn(sum[0], sum[1]), __fadd_rn(square[0], square[1])};
  if (!kPartial && count <= 0) m = {0.0f, 0.0f};
  return m;
}

// `p`: holds the call's eps.
template <class P, class R>
__device__ __forceinline__ float rstd_of(float mean_square, const P& p, const R& rounding) {
  const float variance = rounding.step(mean_square);
  return rounding.step(reciprocal_root(rounding.step(__fadd_rn(variance, p.eps))));
}

// LAYER in two passes with the same code. The sums about the row's first element give the mean. The
// sums about that mean give its correction and the variance.
class LayerStatistics {
 public:
  // A chain in T sums the row itself, because x - -0 is x, ..
  template <class R>
  __device__ __forceinline__ LayerStatistics(float first, const R& rounding)
      : from(rounding.every_step ? -0.0f : first) {}

  // Whether a pass rounds its steps to T.
  template <class R>
  __device__ __forceinline__ static bool steps(int pass, const R& rounding) {
    return rounding.every_step && pass > 0;
  }

  template <class P, class R>
  __device__ __forceinline__ void take(Moments row, int pass, const P& p, const R& rounding) {
    // .. and it corrects nothing.
    const float delta =
        rounding.every_step && pass > 0 ? -0.0f : __fmul_rn(positive_zero(row.sum), p.inv_n);
    mean_square = __fmaf_rn(-delta, delta, __fmul_rn(row.squares, p.inv_n));
    from = rounding.step(__fadd_rn(from, delta));
  }

  __device__ __forceinline__ float mean() const { return from; }
  template <class P, class R>
  __device__ __forceinline__ float rstd(const P& p, const R& rounding) const {
    return rstd_of(mean_square < 0.0f ? 0.0f : mean_square, p, rounding);
  }

  float from;  // what the next pass subtracts

 private:
  float mean_square = 0.0f;
};

// t = (s - mean) * rstd for one vector, or s - mean if the weight takes rstd. t may be s.
template <class Slots, int kCount, class R>
__device__ __forceinline__ void normalize_vector(float (&t)[kCount], const float (&s)[kCount],
                                                 float mean, float rstd, const R& rounding) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) t[i] = s[i];
  if constexpr (Slots::kSource == Source::kAdd) rounding.applied(t);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (Slots::kStat == Stat::kLayer) t[i] = rounding.step(__fsub_rn(t[i], mean));
    if (!rounding.factor_first) t[i] = __fmul_rn(t[i], rstd);
  }
  rounding.normalized(t);
}

}  // namespace fastnorm::cuda
