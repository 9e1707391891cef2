// Roundings of intermediate values to x's dtype, as a call asks for them.
#pragma once

#include "cuda/common/rounding.cuh"
#include "cuda/norm/slots.cuh"
#include "fastnorm/norm.h"

namespace fastnorm::cuda {

// Rounds x + residual to the dtype that a call names, which is not f32.
template <class T, int kCount>
__device__ __forceinline__ void round_to_type(float (&f)[kCount], OperandType type) {
  if (type == OperandType::kOther16) {
    round_to<typename Halves<T>::Other>(f);
  } else {
    round_to<typename Halves<T>::First>(f);
  }
}

// Rounds a row, behind one branch.
template <class T, int kVectors>
__device__ __forceinline__ void round_row(float (&row)[kVectors][T::kPerVector], bool wanted) {
  if constexpr (T::kBytes == 2) {
    if (__builtin_expect(wanted, 0)) {
#pragma unroll
      for (auto& vector : row) round_to<T>(vector);
    } else {
      ptx::keep_branch();
    }
  }
}

// The two roundings that every kernel supports: of x + residual, and of the normalised row.
template <Affine kAffine, class T>
struct Rounding : NoSteps {
  // `known`: the call's bits in a register, for tests before the reduction. Tests after it read
  // `anew`.
  __device__ __forceinline__ explicit Rounding(uint32_t anew, uint32_t known = 0)
      : bits(anew), round_sum((known & kRoundSum) != 0) {}
  __device__ __forceinline__ bool round_normalized() const {
    return (bits & kRoundNormalized) != 0;
  }
  // Without a branch.
  template <int kCount>
  __device__ __forceinline__ void normalized(float (&t)[kCount]) const {
    if constexpr (T::kBytes == 2) {
#pragma unroll
      for (int i = 0; i < kCount; i += 2)
        T::template round_if<kRoundNormalized>(t[i], t[i + 1], bits);
    }
  }
  template <int kCount>
  __device__ __forceinline__ void applied(float (&)[kCount]) const {}

  const uint32_t bits;
  const bool round_sum;
};

// For code that exists twice, with and without rounding.
template <class T, bool kNormalized>
struct KnownRounding : NoSteps {
  template <int kCount>
  __device__ __forceinline__ void normalized(float (&t)[kCount]) const {
    if constexpr (kNormalized) round_to<T>(t);
  }
  template <int kCount>
  __device__ __forceinline__ void applied(float (&)[kCount]) const {}
};

// All roundings, in kernels for any weight and bias.
template <class T>
struct Rounding<Affine::kAny, T> : Steps<T> {
  __device__ __forceinline__ explicit Rounding(const NormParams& p)
      : Steps<T>{p.rounding == FASTNORM_ROUND_EVERY_STEP, p.rounding == FASTNORM_ROUND_ONCE_RW},
        round_normalized((p.bits_again & kRoundNormalized) != 0),
        round_sum((p.bits_again & kRoundSum) != 0),
        round_applied(p.residual_rounding == FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY),
        sum_type(static_cast<OperandType>(p.sum_type)) {}
  template <int kCount>
  __device__ __forceinline__ void normalized(float (&t)[kCount]) const {
    if (round_normalized) round_to<T>(t);
  }
  // x + residual, first for the statistics and then as the input of Affine.
  template <int kCount>
  __device__ __forceinline__ void summed(float (&s)[kCount]) const {
    if (round_sum) round_to_type<T>(s, sum_type);
  }
  template <int kCount>
  __device__ __forceinline__ void applied(float (&s)[kCount]) const {
    if (round_applied) round_to_type<T>(s, sum_type);
  }

  const bool round_normalized, round_sum, round_applied;
  const OperandType sum_type;
};

template <class Slots, class Tile>
__device__ __forceinline__ auto rounding_of(const NormParams& p, uint32_t known = 0) {
  using R = Rounding<Slots::kAffine, typename Slots::T>;
  if constexpr (Slots::kAffine == Affine::kAny) {
    return R(p);
  } else {
    return R(bits_of<Slots, Tile>(p.bits), known);
  }
}

}  // namespace fastnorm::cuda
