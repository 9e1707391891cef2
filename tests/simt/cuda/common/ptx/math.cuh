// cuda/common/ptx/math.cuh for simt/machine.h. The approximations are better here than on a GPU:
// that their refinement is exact from a GPU's own is proved there, by the self-test.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace fastnorm::ptx {

// Subnormal operands and results are zero of the same sign.
inline float flushed(float v) { return std::fpclassify(v) == FP_SUBNORMAL ? v * 0.0f : v; }

// Added to the significand of what is nearest.
inline int rsqrt_units = 0, rcp_units = 0;

inline float with_units(float v, int units) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(v) + static_cast<uint32_t>(units));
}

inline float rsqrt_approx(float v) {
  const float r = flushed(static_cast<float>(1.0 / std::sqrt(static_cast<double>(flushed(v)))));
  return with_units(r, rsqrt_units);
}

inline float rcp_approx(float v) {
  return with_units(flushed(static_cast<float>(1.0 / static_cast<double>(flushed(v)))), rcp_units);
}

inline float max_nan(float a, float b) {
  return a != a || b != b ? std::bit_cast<float>(0x7fffffff) : a > b ? a : b;
}

inline float min_nan(float a, float b) {
  return a != a || b != b ? std::bit_cast<float>(0x7fffffff) : a < b ? a : b;
}

inline uint32_t cvt_f16(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v), magnitude = bits & 0x7fffffff;
  const uint32_t sign = bits >> 16 & 0x8000;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and more round to Inf
  if (magnitude < 0x38800000) {  // subnormal: the last bit of a sum with 1/2 is worth 2^-24
    return sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000);
  }
  return sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
}

inline uint32_t cvt_bf16(float v) {
  if (v != v) return 0x7fff;
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline uint32_t cvt_f16x2(float low, float high) { return cvt_f16(low) | cvt_f16(high) << 16; }
inline uint32_t cvt_bf16x2(float low, float high) { return cvt_bf16(low) | cvt_bf16(high) << 16; }

inline float cvt_from_f16(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000) << 16, magnitude = (bits & 0x7fff) << 13;
  if (magnitude >= 0x0f800000)
    return std::bit_cast<float>(sign | 0x70000000 | magnitude);  // Inf, NaN
  return std::bit_cast<float>(std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f) |
                              sign);
}

// A double to f32 with the last bit set where it is not exact: rounded once more, to 16 bits, it is
// what the double rounds to.
inline float to_odd(double v) {
  const auto nearest = static_cast<float>(v);
  if (v != v || static_cast<double>(nearest) == v) return nearest;
  const auto bits = std::bit_cast<uint32_t>(nearest);
  return std::bit_cast<float>(
      (std::fabs(static_cast<double>(nearest)) > std::fabs(v) ? bits - 1 : bits) | 1);
}

// Rounded once where c is 0 or b is 1, as it always is: a double has more than twice the digits.
inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto fma = [&](int shift) {
    const auto half = [&](uint32_t v) { return double{cvt_from_f16(v >> shift & 0xffff)}; };
    return cvt_f16(to_odd(std::fma(half(a), half(b), half(c)))) << shift;
  };
  return fma(0) | fma(16);
}
inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto fma = [&](int shift) {
    const auto half = [&](uint32_t v) { return double{std::bit_cast<float>(v >> shift << 16)}; };
    return cvt_bf16(to_odd(std::fma(half(a), half(b), half(c)))) << shift;
  };
  return fma(0) | fma(16);
}

template <uint32_t kBit>
inline void round_f16_if(float& a, float& b, uint32_t bits) {
  if ((bits & kBit) != 0) a = cvt_from_f16(cvt_f16(a)), b = cvt_from_f16(cvt_f16(b));
}
template <uint32_t kBit>
inline void round_bf16_if(float& a, float& b, uint32_t bits) {
  if ((bits & kBit) == 0) return;
  a = std::bit_cast<float>(cvt_bf16(a) << 16);
  b = std::bit_cast<float>(cvt_bf16(b) << 16);
}

}  // namespace fastnorm::ptx
