// f32 to the codes of quantised outputs, nearest even, saturating; NaN has the code of the format's NaN, or 0 for integers. Two values
// at a time, `low` in the low half. In software where the architecture has no instruction.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

// To a float format of at most 8 bits: bits of its fraction, bias of its exponent, f32 bits of its greatest value, code of NaN, place
// of its sign.
template <int kFraction, int kBias, uint32_t kGreatest, uint32_t kNan, int kSign>
__device__ __forceinline__ uint32_t to_small_float(float v) {
  constexpr int kDrop = 23 - kFraction;
  constexpr uint32_t kLeastNormal = static_cast<uint32_t>(127 + 1 - kBias) << 23;
  // A number whose last bit is worth a unit of the format's subnormals.
  constexpr uint32_t kUnits = static_cast<uint32_t>(127 + 23 + 1 - kBias - kFraction) << 23;
  const uint32_t bits = __float_as_uint(v), magnitude = bits & 0x7fffffff;
  const uint32_t kept = magnitude > kGreatest ? kGreatest : magnitude;
  const uint32_t normal = ((kept + ((1u << (kDrop - 1)) - 1) + (kept >> kDrop & 1)) >> kDrop) -
                          (static_cast<uint32_t>(127 - kBias) << kFraction);
  const uint32_t subnormal =
      __float_as_uint(__fadd_rn(__uint_as_float(kept), __uint_as_float(kUnits))) - kUnits;
  const uint32_t code = (kept < kLeastNormal ? subnormal : normal) | (bits >> 31) << kSign;
  return magnitude > 0x7f800000 ? kNan : code;
}

__device__ __forceinline__ uint32_t cvt_e4m3x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
#else
  return to_small_float<3, 7, 0x43e00000, 0x7f, 7>(low) |
         to_small_float<3, 7, 0x43e00000, 0x7f, 7>(high) << 8;
#endif
}

__device__ __forceinline__ uint32_t cvt_e5m2x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t r;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
#else
  return to_small_float<2, 15, 0x47600000, 0x7f, 7>(low) |
         to_small_float<2, 15, 0x47600000, 0x7f, 7>(high) << 8;
#endif
}

// To e2m1: with E the exponent of |v|, 0 at least, the sum with 2^(E + 22) rounds |v| to its first fraction bit and holds how many units
// of 2^(E - 1) that is, and each E before it has taken two codes.
__device__ __forceinline__ uint32_t to_e2m1(float v) {
  const float kept = fminf(fabsf(v), 6.0f);  // of NaN 6
  constexpr uint32_t kOne = 0x3f800000;
  const uint32_t exponent = __float_as_uint(kept) & 0x7f800000;
  const uint32_t binade = exponent > kOne ? exponent : kOne;
  const uint32_t unit = binade + (22u << 23);
  const uint32_t units = __float_as_uint(__fadd_rn(kept, __uint_as_float(unit))) - unit;
  return units + ((binade - kOne) >> 22) + (__float_as_uint(v) >> 31 << 3);
}

// 4-bit codes: 8 bits in all. A NaN must have its sign clear, as a product has.
__device__ __forceinline__ uint32_t cvt_e2m1x2(float low, float high) {
#if __CUDA_ARCH__ >= 1000 && defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
  uint32_t r;
  asm("{\n.reg .b8 byte;\ncvt.rn.satfinite.e2m1x2.f32 byte, %1, %2;\ncvt.u32.u8 %0, byte;\n}"
      : "=r"(r)
      : "f"(high), "f"(low));
  return r;
#else
  return to_e2m1(low) | to_e2m1(high) << 4;
#endif
}

__device__ __forceinline__ uint32_t cvt_s8x2(float low, float high) {
  const int32_t a = __float2int_rn(low),
                b = __float2int_rn(high);  // NaN gives 0, the rest saturates
  const int32_t kept_a = a < -128 ? -128 : a > 127 ? 127 : a;
  const int32_t kept_b = b < -128 ? -128 : b > 127 ? 127 : b;
  return (static_cast<uint32_t>(kept_a) & 0xff) | (static_cast<uint32_t>(kept_b) & 0xff) << 8;
}

}  // namespace fastnorm::ptx
