// Blocks of columns times a Hadamard matrix, before their codes. include/fastnorm/norm.h has the
// order of the steps.
#pragma once

#include "cuda/common/normalize.cuh"
#include "cuda/common/ptx/memory.cuh"
#include "cuda/norm/params.h"
#include "cuda/norm/rounding.cuh"

namespace fastnorm::cuda {

// Columns of the largest block.
inline constexpr int kMostRotated = 128;

__device__ __forceinline__ void flip(float& value, uint32_t sign) {
  value = __uint_as_float(__float_as_uint(value) ^ (sign & 0x80000000u));
}

// The signs of four columns, as bits of f32. They begin at a multiple of 16 bytes.
__device__ __forceinline__ uint4 load_signs(const RotationParams& r, uint64_t column) {
  return ptx::ld_global_v4(r.signs + (column & r.signs_repeat));
}

__device__ __forceinline__ void flip_four(float* z, const uint4& signs) {
  flip(z[0], signs.x), flip(z[1], signs.y), flip(z[2], signs.z), flip(z[3], signs.w);
}

// Multiplies one vector by its signs, which may begin at any address. `vector`: its number in the
// row, which must have it.
template <int kPerVector>
__device__ __forceinline__ void take_signs(const RotationParams& r, float (&z)[kPerVector],
                                           uint64_t vector) {
  const float* const signs = r.signs + (vector * kPerVector & r.signs_repeat);
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) flip(z[i], __float_as_uint(ptx::ld_global_f32(signs + i)));
}

// A sum in the place of the first value, a difference in that of the second.
__device__ __forceinline__ void combine(float& first, float& second) {
  const float a = first, b = second;
  first = __fadd_rn(a, b);
  second = __fsub_rn(a, b);
}

// The steps of a rotation whose distances are columns of a vector.
template <int kVectors, int kPerVector>
__device__ __forceinline__ void combine_columns(float (&z)[kVectors][kPerVector]) {
#pragma unroll
  for (auto& vector : z) {
#pragma unroll
    for (int h = 1; h < kPerVector; h *= 2) {
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) {
        if ((i & h) == 0) combine(vector[i], vector[i + h]);
      }
    }
  }
}

// The step whose distance is vectors of so many lanes. All lanes of a warp must call it. The sign
// of a lane's own value is a factor, which costs nothing in an FMA: a product by 1 or -1 is exact,
// so the sum has the bits of an addition or a subtraction.
template <int kVectors, int kPerVector>
__device__ __forceinline__ void combine_lane(float (&z)[kVectors][kPerVector], int lanes) {
  const float sign = (threadIdx.x & lanes) != 0 ? -1.0f : 1.0f;
#pragma unroll
  for (auto& vector : z) {
#pragma unroll
    for (float& value : vector) value = __fmaf_rn(value, sign, __shfl_xor_sync(~0u, value, lanes));
  }
}

// All such steps of kLanes neighbouring lanes.
// kUnroll: exchanges that are unrolled; 1 needs fewer registers.
template <int kLanes, int kUnroll, int kVectors, int kPerVector>
__device__ __forceinline__ void combine_lanes(const RotationParams& r,
                                              float (&z)[kVectors][kPerVector]) {
#pragma unroll kUnroll
  for (int lanes = 1; lanes < kLanes; lanes *= 2) {
    if (lanes * kPerVector >= r.block) break;
    combine_lane(z, lanes);
  }
}

// Rotates vectors, whose blocks the neighbouring lanes have. All lanes of a warp must call it.
template <int kUnroll = 8, int kVectors, int kPerVector>
__device__ __forceinline__ void rotate_vectors(const RotationParams& r,
                                               float (&z)[kVectors][kPerVector]) {
  combine_columns(z);
  combine_lanes<kMostRotated / kPerVector, kUnroll>(r, z);
#pragma unroll
  for (auto& vector : z) scale_values(vector, r.factor);
}

// Rotates vector `vector` of a row, as quantised: rounded before if the call asks for that.
// `present`: the row has it.
template <class T>
__device__ __forceinline__ void rotate(const RotationParams& r, bool from_rounded,
                                       float (&z)[T::kPerVector], uint64_t vector, bool present) {
  if (from_rounded) round_to<T>(z);
  if (r.signs != nullptr && present) take_signs(r, z, vector);
  float one[1][T::kPerVector];
  copy_values(one[0], z);
  rotate_vectors<1>(r, one);
  copy_values(z, one[0]);
}

}  // namespace fastnorm::cuda
