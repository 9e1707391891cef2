// Roundings of intermediate values to T, in place.
#pragma once

#include "cuda/common/element.cuh"

namespace fastnorm::cuda {

template <class T, int kCount>
__device__ __forceinline__ void round_to(float (&f)[kCount]) {
  if constexpr (T::kBytes == 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) T::unpack_word(T::pack_word(f[i], f[i + 1]), f + i);
  }
}

template <class T, int kVectors, int kPerVector>
__device__ __forceinline__ void round_vectors(float (&z)[kVectors][kPerVector], bool wanted) {
  if (!wanted) return;
#pragma unroll
  for (auto& vector : z) round_to<T>(vector);
}

// Which steps of a norm are rounded. step() is an intermediate value of a chain in T. With
// `factor_first` the weight is multiplied by rstd before the row is.
template <class T>
struct Steps {
  __device__ __forceinline__ float step(float f) const { return every_step ? T::round(f) : f; }

  bool every_step, factor_first = false;
};

struct NoSteps {
  static constexpr bool every_step = false, factor_first = false;
  __device__ __forceinline__ float step(float f) const { return f; }
};

}  // namespace fastnorm::cuda
