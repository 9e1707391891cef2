// What is reduced over a row: the statistics of RMS and LAYER.
#pragma once

#include "cuda/common/root.cuh"
#include "cuda/common/rounding.cuh"
#include "cuda/common/tile.cuh"

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
__device__ __forceinline__ float vector_dot(const float (&a)[kCount], const float (&b)[kCount]) {
  float even = __fmul_rn(a[0], b[0]), odd = __fmul_rn(a[1], b[1]);
#pragma unroll
  for (int i = 2; i < kCount; i += 2) {
    even = __fmaf_rn(a[i], b[i], even);
    odd = __fmaf_rn(a[i + 1], b[i + 1], odd);
  }
  return __fadd_rn(even, odd);
}

template <int kCount>
__device__ __forceinline__ float vector_sum_of_squares(const float (&a)[kCount]) {
  return vector_dot(a, a);
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

// A thread's sum of the squares of its vectors.
template <class T, int kVectors>
__device__ __forceinline__ float squares_of(const uint4 (&raw)[kVectors], bool steps = false) {
  float q[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float f[T::kPerVector];
    T::unpack(raw[v], f);
    q[v] = squares<T>(f, steps);
  }
  return fold_registers(q);
}

// One vector's part of the sums of s - from and of its squares. Positions from `count` on are
// padding and add nothing; they occur only with kPartial. `steps`: a chain in T rounds the squares;
// `rounds`: and the differences, as LAYER's does.
template <class T, bool kPartial, int kCount>
__device__ __forceinline__ Moments moments(const float (&s)[kCount], float from, int count,
                                           bool steps, bool rounds) {
  // The chains of both sums are interleaved, so that few differences are alive.
  float sum[2], square[2];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float d = __fsub_rn(s[i], from);
    if (rounds) d = T::round(d);
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

template <class T, bool kPartial, int kCount>
__device__ __forceinline__ Moments moments(const float (&s)[kCount], float from, int count,
                                           bool steps) {
  return moments<T, kPartial>(s, from, count, steps, steps);
}

// A thread's sums over its vectors, of which vector v has count(v) elements, all of them or none.
template <class T, int kVectors, typename Count>
__device__ __forceinline__ Moments moments_of(const uint4 (&raw)[kVectors], float from, bool steps,
                                              Count count) {
  Moments m[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float f[T::kPerVector];
    T::unpack(raw[v], f);
    m[v] = moments<T, false>(f, from, count(v), steps);
  }
  return fold_moments(m);
}

// The sum of squares about the mean, from the sums of LAYER's last pass.
__device__ __forceinline__ float squares_about_mean(const Moments& m, float inv_n,
                                                    bool every_step) {
  const float delta = every_step ? -0.0f : __fmul_rn(m.sum, inv_n);
  const float squared = __fmaf_rn(-delta, m.sum, m.squares);
  return squared < 0.0f ? 0.0f : squared;
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

struct NothingAfter {
  __device__ __forceinline__ void operator()(int, float) const {}
};

// Both passes over a row whose first element is `first`. sums_of(pass, from, steps) has the row's
// sums of a pass, and after(pass, from) follows it with what the next pass subtracts.
template <class P, class R, typename SumsOf, typename After = NothingAfter>
__device__ __forceinline__ LayerStatistics layer_statistics(float first, const P& p,
                                                            const R& rounding, SumsOf sums_of,
                                                            After after = {}) {
  LayerStatistics statistics(first, rounding);
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const bool steps = statistics.steps(pass, rounding);
    statistics.take(sums_of(pass, statistics.from, steps), pass, p, rounding);
    after(pass, statistics.from);
  }
  return statistics;
}

}  // namespace fastnorm::cuda
