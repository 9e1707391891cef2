// The formulas of the backward pass, value by value. Every form computes with these.
#pragma once

#include "cuda/common/normalize.cuh"
#include "cuda/common/statistics.cuh"
#include "cuda/norm_backward/params.h"

namespace fastnorm::cuda {

struct Statistics {
  float mean, rstd;
};

// The normalised value of h. RMS ignores the mean.
template <Stat kStat>
__device__ __forceinline__ float normalized(float h, const Statistics& s) {
  return __fmul_rn(kStat == Stat::kLayer ? __fsub_rn(h, s.mean) : h, s.rstd);
}

// f rounded to a dtype that is known at run time.
__device__ __forceinline__ float round_to_dtype(float f, Dtype dtype) {
  return dtype == Dtype::kBF16  ? Element<Dtype::kBF16>::round(f)
         : dtype == Dtype::kF16 ? Element<Dtype::kF16>::round(f)
                                : f;
}

// The factor that the forward multiplies by, rounded if the bit `rounds` of the call is set.
__device__ __forceinline__ float gain_of(float weight, float offset, const NormBackwardParams& p,
                                         uint32_t rounds) {
  const float gain = __fadd_rn(weight, offset);
  return (p.bits & rounds) != 0 ? round_to_dtype(gain, p.dtype) : gain;
}

// Rounds what a bit of the call says, such as kBackwardRoundNormalized: the normalised values as
// dweight sees them.
template <int kCount>
__device__ __forceinline__ void round_if(float (&v)[kCount], const NormBackwardParams& p,
                                         uint32_t bit) {
  if ((p.bits & bit) == 0) return;
#pragma unroll
  for (float& value : v) value = round_to_dtype(value, p.dtype);
}

// A row's sums as they enter the formulas: c1 of e * x^, and c2 of e (LAYER).
template <Stat kStat>
inline constexpr int kGradientSums = kStat == Stat::kLayer ? 2 : 1;

__device__ __forceinline__ float mean_of_sum(float sum, const NormBackwardParams& p) {
  return __fmul_rn(positive_zero(sum), p.inv_n);
}

// The gradient of h before `rstd` multiplies it.
template <Stat kStat>
__device__ __forceinline__ float centred(float x, float e, const float (&c)[kGradientSums<kStat>]) {
  return __fmaf_rn(-x, c[0], kStat == Stat::kLayer ? __fsub_rn(e, c[kGradientSums<kStat> - 1]) : e);
}

// One row's addition to a lane's sums.
template <Stat kStat, int kCount>
__device__ __forceinline__ void accumulate(float (&dweight)[kCount], float (&dbias)[kCount],
                                           const float (&dy)[kCount], const float (&t)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    dweight[i] = __fmaf_rn(dy[i], t[i], dweight[i]);
    if constexpr (kStat == Stat::kLayer) dbias[i] = __fadd_rn(dbias[i], dy[i]);
  }
}

}  // namespace fastnorm::cuda
