// Arithmetic of quantisation: scales from magnitudes, and codes from scaled values.
// include/fastnorm/norm.h has the formulas.
//
// A magnitude is the bits of |z|. Their order is that of the values, with NaN above all. So the
// greatest does not depend on the order of threads.
#pragma once

#include "cuda/common/normalize.cuh"
#include "cuda/common/ptx/convert.cuh"
#include "cuda/common/ptx/math.cuh"
#include "cuda/common/ptx/memory.cuh"
#include "cuda/norm/params.h"

namespace fastnorm::cuda {

inline constexpr uint32_t kInfBits = 0x7f800000, kMagnitude = 0x7fffffff;

__device__ __forceinline__ uint32_t greater(uint32_t a, uint32_t b) { return a > b ? a : b; }

template <int kCount>
__device__ __forceinline__ uint32_t magnitude_bits(const float (&z)[kCount]) {
  float most = ptx::max_nan(fabsf(z[0]), fabsf(z[1]));
#pragma unroll
  for (int i = 2; i < kCount; ++i) most = ptx::max_nan(most, fabsf(z[i]));
  return __float_as_uint(most);
}

// amax / greatest, correctly rounded, for amax of 2^-100 or more, Inf or NaN. `inverse` is 1 /
// greatest, rounded to nearest. One step on the exact remainder. A test checks all significands and
// the three divisors.
__device__ __forceinline__ float divide_by_greatest(float amax, float greatest, float inverse) {
  const float q = __fmul_rn(amax, inverse);
  const float exact = __fmaf_rn(__fmaf_rn(-q, greatest, amax), inverse, q);
  return (__float_as_uint(amax) & kMagnitude) >= kInfBits ? amax : exact;
}

// 1 / scale, correctly rounded, for scales that are NaN or have a magnitude in [2^-126, 2^126].
__device__ __forceinline__ float inverse_in_range(float scale) {
  const float q = ptx::rcp_approx(scale);
  return __fmaf_rn(q, __fmaf_rn(-q, scale, 1.0f), q);
}

// 1 / scale, also for Inf.
__device__ __forceinline__ float inverse_of_scale(float scale) {
  const float exact = inverse_in_range(scale);
  return (__float_as_uint(scale) & kMagnitude) >= kInfBits ? ptx::rcp_approx(scale) : exact;
}

// 2^(byte - 127), the value of an e8m0 byte that is not NaN.
__device__ __forceinline__ float from_e8m0(uint32_t byte) {
  return __uint_as_float(byte == 0 ? 0x00400000 : byte << 23);
}

// The codes of one vector of scaled values, as bytes in order. If the type is a constant, the
// branch disappears.
template <int kPerVector>
__device__ __forceinline__ void make_codes(CodeType type, const float (&w)[kPerVector],
                                           uint32_t (&words)[2]) {
  words[0] = words[1] = 0;
  if (type == CodeType::kE4M3) {
#pragma unroll
    for (int i = 0; i < kPerVector; i += 2)
      words[i / 4] |= ptx::cvt_e4m3x2(w[i], w[i + 1]) << i % 4 * 8;
  } else if (type == CodeType::kE5M2) {
#pragma unroll
    for (int i = 0; i < kPerVector; i += 2)
      words[i / 4] |= ptx::cvt_e5m2x2(w[i], w[i + 1]) << i % 4 * 8;
  } else if (type == CodeType::kI8) {
#pragma unroll
    for (int i = 0; i < kPerVector; i += 4)
      words[i / 4] = ptx::cvt_s8x4(w[i], w[i + 1], w[i + 2], w[i + 3]);
  } else {
#pragma unroll
    for (int i = 0; i < kPerVector; i += 2) words[0] |= ptx::cvt_e2m1x2(w[i], w[i + 1]) << 4 * i;
  }
}

// z / scale, rounded once, for any scale. Two exact remainders correct the product with the
// reciprocal. Below 2^-40 and from 2^17 on the product stays: its code is that of 0 or of the
// greatest value. It also stays for a scale of 0, Inf or NaN.
struct CodeDivisor {
  __device__ __forceinline__ explicit CodeDivisor(float scale) {
    // Scaled by a power of two to [1, 2), so that remainders are exact. Subnormal scales stay below
    // 1.
    const uint32_t magnitude = __float_as_uint(scale) & kMagnitude;
    const uint32_t power = 254 - greater(magnitude >> 23, 1);
    const bool finite = magnitude - 1 < kInfBits - 1;
    shift = !finite ? 1.0f : __uint_as_float(power == 0 ? 0x00400000 : power << 23);
    divisor = __fmul_rn(scale, shift);
    inverse = __frcp_rn(divisor);
  }

  __device__ __forceinline__ float quotient(float z) const {
    constexpr uint32_t kLeast = 0x2b800000, kMost = 0x48000000;
    const float a = __fmul_rn(z, shift), q = __fmul_rn(a, inverse);
    float exact = __fmaf_rn(__fmaf_rn(-q, divisor, a), inverse, q);
    exact = __fmaf_rn(__fmaf_rn(-exact, divisor, a), inverse, exact);
    const uint32_t magnitude = __float_as_uint(q) & kMagnitude;
    return magnitude - kLeast < kMost - kLeast ? exact : q;
  }

  float shift, divisor, inverse;
};

template <int kCount>
__device__ __forceinline__ void divide_values(float (&z)[kCount], float scale) {
  const CodeDivisor by(scale);
#pragma unroll
  for (float& value : z) value = by.quotient(value);
}

// The bits of a scale in its type, and the factor of the codes, or the divisor if codes are
// quotients.
struct Scale {
  uint32_t bits;
  float inverse;
};

// max(A, amax_floor) / QMAX.
__device__ __forceinline__ Scale quotient_scale(const QuantParams& q, uint32_t magnitude) {
  const uint32_t amax = greater(magnitude, __float_as_uint(q.amax_floor));
  const float value = divide_by_greatest(__uint_as_float(amax), q.greatest, q.inverse_greatest);
  return {__float_as_uint(value), q.divides ? value : inverse_of_scale(value)};
}

// The least 2^E with A <= m * 2^(k + E), for E in [-127, 127]. m * 2^k is the greatest code. The
// addition carries into the exponent if the fraction is above m - 1: 0.75, or 0.5 for e2m1.
__device__ __forceinline__ Scale pow2_scale(const QuantParams& q, uint32_t magnitude) {
  const uint32_t amax = greater(magnitude, __float_as_uint(q.amax_floor));
  const int least = static_cast<int>((amax + q.exponent_carry) >> 23) - q.greatest_exponent;
  uint32_t byte = least < 0 ? 0 : least;  // E + 127
  float inverse = __uint_as_float((254 - byte) << 23);
  if (amax >= kInfBits) {
    const bool nan = amax > kInfBits;
    byte = nan ? 255 : 254;
    inverse = __uint_as_float(nan ? amax : 0x00400000);
  }
  if (q.scale_type == ScaleType::kE8M0) return {byte, inverse};
  return {amax > kInfBits ? amax : __float_as_uint(from_e8m0(byte)), inverse};
}

// A / (6 * |global_scale|), rounded to e4m3. With a negative global scale the codes have the
// opposite sign.
struct Nvfp4Scales {
  __device__ __forceinline__ explicit Nvfp4Scales(float global_scale) {
    global = global_scale;
    factor = fabsf(__fmul_rn(__frcp_rn(global), 1.0f / 6.0f));
    // Then its product with any scale except 0, [2^-9, 448], is in [2^-126, 2^126].
    usual = fabsf(global) > 0x1p-100f && fabsf(global) < 0x1p100f;
  }

  __device__ __forceinline__ Scale make(uint32_t magnitude) const {
    const uint32_t code =
        ptx::cvt_e4m3x2(__fmul_rn(__uint_as_float(magnitude), factor), 0.0f) & 0xff;
    const float value = ptx::from_e4m3(code & 0x7f), whole = __fmul_rn(value, global);
    float inverse;
    if (usual) {
      inverse = inverse_in_range(whole);
    } else {
      inverse = __frcp_rn(whole);
      inverse = fabsf(inverse) > 0x1.fffffep127f ? copysignf(0x1.fffffep127f, inverse) : inverse;
    }
    return {code, value == 0.0f ? 0.0f : inverse};
  }

  float global, factor;
  bool usual;
};

// Stores the codes of one vector in one access of 8, 4 or 2 bytes.
template <int kPerVector>
__device__ __forceinline__ void store_codes(char* address, const uint32_t (&words)[2], bool pairs) {
  if constexpr (kPerVector == 8) {
    if (pairs) {
      ptx::st_global_u32(address, words[0]);
    } else {
      ptx::st_global_v2(address, make_uint2(words[0], words[1]));
    }
  } else {
    if (pairs) {
      ptx::st_global_u16(address, words[0]);
    } else {
      ptx::st_global_u32(address, words[0]);
    }
  }
}

}  // namespace fastnorm::cuda
