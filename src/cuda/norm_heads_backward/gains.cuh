// The forward's factors, from a part's weight. Part is HeadsGradientParams or HeldGradientParams.
#pragma once

#include "cuda/norm_backward/rows.cuh"
#include "cuda/norm_heads_backward/params.h"

namespace fastnorm::cuda {

template <class T, class Part>
__device__ __forceinline__ DtypeRow<T> weight_row(const Part& part, uint32_t head) {
  const char* const row =
      part.weight == nullptr ? nullptr : part.weight + int64_t{head} * part.weight_stride;
  return {const_cast<char*>(row), part.weight_dtype};
}

template <class T, class Part>
__device__ __forceinline__ float gain_of(float weight, const Part& part) {
  return Steps<T>{part.round_gain}.step(__fadd_rn(weight, part.weight_offset));
}

// The factors of a vector, of which the row has `count` columns; 1 without a weight.
template <class T, class Part>
__device__ __forceinline__ void load_gains(float (&gain)[T::kPerVector], const Part& part,
                                           const DtypeRow<T>& weight, int64_t vector, int count) {
  load_factors(gain, weight, vector, count, [&](float g) { return gain_of<T>(g, part); });
}

}  // namespace fastnorm::cuda
