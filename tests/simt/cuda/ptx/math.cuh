// cuda/ptx/math.cuh for simt/machine.h. The approximations are better here than on a GPU: that their refinement is exact from a GPU's
// own is proved there, by the self-test.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace fastnorm::ptx {

#ifdef __aarch64__
using Half = __fp16;
#else
using Half = _Float16;
#endif

// Subnormal operands and results are zero of the same sign.
inline float flushed(float v) { return std::fpclassify(v) == FP_SUBNORMAL ? v * 0.0f : v; }

inline float rsqrt_approx(float v) {
  return flushed(static_cast<float>(1.0 / std::sqrt(static_cast<double>(flushed(v)))));
}

inline float rcp_approx(float v) {
  return flushed(static_cast<float>(1.0 / static_cast<double>(flushed(v))));
}

inline uint32_t cvt_f16(float v) { return std::bit_cast<uint16_t>(static_cast<Half>(v)); }

inline uint32_t cvt_bf16(float v) {
  if (v != v) return 0x7fff;
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline uint32_t cvt_f16x2(float low, float high) { return cvt_f16(low) | cvt_f16(high) << 16; }
inline uint32_t cvt_bf16x2(float low, float high) { return cvt_bf16(low) | cvt_bf16(high) << 16; }

inline float cvt_from_f16(uint32_t bits) {
  return static_cast<float>(std::bit_cast<Half>(static_cast<uint16_t>(bits)));
}

}  // namespace fastnorm::ptx
