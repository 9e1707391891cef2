// f32 to the codes of quantised outputs: rounded to nearest even, saturating. NaN becomes the
// format's NaN, or 0 for integers. Two values at a time, `low` in the low half. In software if the
// architecture has no instruction.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

// To a float format of at most 8 bits. The parameters are the fraction's bits, the exponent's bias,
// the f32 bits of the greatest value, the code of NaN and the sign's position.
template <int kFraction, int kBias, uint32_t kGreatest, uint32_t kNan, int kSign>
__device__ __forceinline__ uint32_t to_small_float(float v) {
  constexpr int kDrop = 23 - kFraction;
  constexpr uint32_t kLeastNormal = static_cast<uint32_t>(127 + 1 - kBias) << 23;
  // A number whose last bit is a unit of the format's subnormals.
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

// The value of an e4m3 code without its sign.
__device__ __forceinline__ float from_e4m3(uint32_t code) {
#if __CUDA_ARCH__ >= 890
  float value;
  asm("{\n.reg .b32 pair;\n.reg .b16 low, high;\n"
      "cvt.rn.f16x2.e4m3x2 pair, %1;\nmov.b32 {low, high}, pair;\ncvt.f32.f16 %0, low;\n}"
      : "=f"(value)
      : "h"(static_cast<uint16_t>(code)));
  return value;
#else
  // The code's bits as the high bits of an f32 are 2^-120 times its value, also for subnormals.
  return code == 0x7f ? __uint_as_float(0x7fffffff)
                      : __fmul_rn(__uint_as_float(code << 20), 0x1p120f);
#endif
}

// The values of the two e4m3 codes in a word's low half.
__device__ __forceinline__ float2 from_e4m3x2(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  float2 v;
  asm("{\n.reg .b32 pair;\n.reg .b16 low, high;\n"
      "cvt.rn.f16x2.e4m3x2 pair, %2;\nmov.b32 {low, high}, pair;\n"
      "cvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
      : "=f"(v.x), "=f"(v.y)
      : "h"(static_cast<uint16_t>(codes)));
  return v;
#else
  const auto value = [](uint32_t code) {
    return (code & 0x80) != 0 ? -from_e4m3(code & 0x7f) : from_e4m3(code & 0x7f);
  };
  return make_float2(value(codes & 0xff), value(codes >> 8 & 0xff));
#endif
}

// To e2m1. E is the exponent of |v|, at least 0. Adding 2^(E + 22) rounds |v| to its first fraction
// bit. The result holds the number of units of 2^(E - 1). Each exponent below E takes two codes.
__device__ __forceinline__ uint32_t to_e2m1(float v) {
  const float kept = fminf(fabsf(v), 6.0f);  // 6 for NaN
  constexpr uint32_t kOne = 0x3f800000;
  const uint32_t exponent = __float_as_uint(kept) & 0x7f800000;
  const uint32_t binade = exponent > kOne ? exponent : kOne;
  const uint32_t unit = binade + (22u << 23);
  const uint32_t units = __float_as_uint(__fadd_rn(kept, __uint_as_float(unit))) - unit;
  return units + ((binade - kOne) >> 22) + (__float_as_uint(v) >> 31 << 3);
}

// Two 4-bit codes in 8 bits. A NaN must have its sign clear, as NaN products have.
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

// The e2m1 codes of v[i] * factor, from the lowest bits on. No product may be NaN, or 7 or more in
// magnitude.
//
// Up to 2, a code counts magnitude in steps of 1/2; up to 4 in steps of 1; above in steps of 2. The
// last bits of an f32 near 2^22, 2^23 and 2^24 count in the same steps. Adding the magnitude to
// such a number therefore rounds it. The number is base, base + 2 step or base + 4 step. Two bits
// of the magnitude's exponent select it: they leave 2, 4 or, below 2, a number that is lost in
// base. The last four bits of the sum are then 8 + the code. Those of the three numbers are 8, 10
// and 12, and they grow by 0 .. 4, 2 .. 4 and 2 .. 3.
template <int kCount>
__device__ __forceinline__ uint32_t to_e2m1_below_7(const float (&v)[kCount], float factor) {
  constexpr float kBase = 0x1p22f + 28, kStep = 0x1.8p21f + 7;
  static_assert(kBase + 2 * kStep >= 0x1p23f && kBase + 4 * kStep >= 0x1p24f);
  uint32_t codes = 0, signs = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float a = __fmul_rn(fabsf(v[i]), fabsf(factor));
    const float binade = __uint_as_float(__float_as_uint(a) & 0x40800000u);
    const float sum = __fadd_rn(a, __fmaf_rn(binade, kStep, kBase));
    codes = __funnelshift_r(codes, __float_as_uint(sum), 4);
    signs = __funnelshift_l(__float_as_uint(v[kCount - 1 - i]), signs, 4);
  }
  if (factor < 0.0f) signs = ~signs;
  return (codes >> (32 - 4 * kCount) & 0x77777777u) | (signs & 0x88888888u);
}

// Whether the architecture has an instruction for e2m1.
#if __CUDA_ARCH__ >= 1000 && defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
inline constexpr bool kConvertsE2m1 = true;
#else
inline constexpr bool kConvertsE2m1 = false;
#endif

// To i8, four bytes in order.
__device__ __forceinline__ uint32_t cvt_s8x4(float a, float b, float c, float d) {
  // NaN becomes 0. Other values saturate.
  const int32_t i = __float2int_rn(a), j = __float2int_rn(b), k = __float2int_rn(c),
                l = __float2int_rn(d);
#if __CUDA_ARCH__ >= 800
  uint32_t high, r;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(l), "r"(k));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(j), "r"(i), "r"(high));
  return r;
#else
  const auto byte = [](int32_t v) {
    return static_cast<uint32_t>(v < -128 ? -128 : v > 127 ? 127 : v) & 0xff;
  };
  return byte(i) | byte(j) << 8 | byte(k) << 16 | byte(l) << 24;
#endif
}

}  // namespace fastnorm::ptx
