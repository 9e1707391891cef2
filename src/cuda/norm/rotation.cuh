// Blocks of columns times a Hadamard matrix, before their codes. include/fastnorm/norm.h has the
// order of the steps.
#pragma once

#include "cuda/common/ptx/memory.cuh"
#include "cuda/norm/params.h"
#include "cuda/norm/rounding.cuh"

namespace fastnorm::cuda {

// Multiplies one vector by its signs. `vector`: its number in the row, which must have it.
// kAligned: the signs begin at a multiple of 16 bytes.
template <bool kAligned = false, int kPerVector>
__device__ __forceinline__ void take_signs(const RotationParams& r, float (&z)[kPerVector],
                                           uint64_t vector) {
  const float* const signs = r.signs + (vector * kPerVector & r.signs_repeat);
  uint32_t s[kPerVector];
  if constexpr (kAligned) {
#pragma unroll
    for (int i = 0; i < kPerVector; i += 4) {
      const uint4 four = ptx::ld_global_v4(signs + i);
      s[i] = four.x, s[i + 1] = four.y, s[i + 2] = four.z, s[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) s[i] = __float_as_uint(ptx::ld_global_f32(signs + i));
  }
#pragma unroll
  for (int i = 0; i < kPerVector; ++i)
    z[i] = __uint_as_float(__float_as_uint(z[i]) ^ (s[i] & 0x80000000u));
}

// Rotates one vector, whose block the neighbouring lanes have. All lanes of a warp must call it.
// kUnroll: exchanges that are unrolled; 1 needs fewer registers.
template <int kUnroll = 8, int kPerVector>
__device__ __forceinline__ void rotate_vector(const RotationParams& r, float (&z)[kPerVector]) {
#pragma unroll
  for (int h = 1; h < kPerVector; h *= 2) {
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) {
      if ((i & h) != 0) continue;
      const float first = z[i], second = z[i + h];
      z[i] = __fadd_rn(first, second);
      z[i + h] = __fsub_rn(first, second);
    }
  }
#pragma unroll kUnroll
  for (int lanes = 1; lanes < 128 / kPerVector; lanes *= 2) {
    if (lanes * kPerVector >= r.block) break;
    const bool upper = (threadIdx.x & lanes) != 0;
#pragma unroll
    for (float& value : z) {
      const float other = __shfl_xor_sync(~0u, value, lanes);
      value = __fadd_rn(other, upper ? -value : value);
    }
  }
#pragma unroll
  for (float& value : z) value = __fmul_rn(value, r.factor);
}

// Rotates vector `vector` of a row, as quantised: rounded before if the call asks for that.
// `present`: the row has it.
template <class T>
__device__ __forceinline__ void rotate(const RotationParams& r, bool from_rounded,
                                       float (&z)[T::kPerVector], uint64_t vector, bool present) {
  if (from_rounded) round_to<T>(z);
  if (r.signs != nullptr && present) take_signs(r, z, vector);
  rotate_vector<1>(r, z);
}

}  // namespace fastnorm::cuda
