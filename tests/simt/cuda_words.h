// CUDA's words as plain C++, for kernels that simt/machine.h runs. Included ahead of a kernel's
// source.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "simt/machine.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (simt::current->thread)
#define blockIdx (simt::current->block)
#define gridDim (simt::current->blocks)

struct float2 {
  float x, y;
};
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
// A GPU's NaN has no sign.
inline float __fmul_rn(float a, float b) {
  const float product = a * b;
  return product == product ? product : std::bit_cast<float>(0x7fffffff);
}
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
// Rounded up: the nearest one, or the next if that lies below. Of products and sums whose exponents
// are near each other.
inline float __fmaf_ru(float a, float b, float c) {
  const float nearest = std::fma(a, b, c);
  const double missing = static_cast<double>(a) * b - (static_cast<double>(nearest) - c);
  return missing > 0 ? std::nextafter(nearest, INFINITY) : nearest;
}
inline float fminf(float a, float b) { return std::fmin(a, b); }
inline float fabsf(float a) { return std::fabs(a); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline float __int_as_float(int32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t __float_as_uint(float f) { return std::bit_cast<uint32_t>(f); }
// Saturating; NaN is 0.
inline int32_t __float2int_rn(float f) {
  if (f != f) return 0;
  if (f >= 0x1p31f) return INT32_MAX;
  if (f < -0x1p31f) return INT32_MIN;
  return static_cast<int32_t>(std::nearbyint(f));
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) << (shift & 31) >> 32);
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline int __clzll(int64_t v) { return std::countl_zero(static_cast<uint64_t>(v)); }
inline uint32_t __brev(uint32_t v) {
  uint32_t r = 0;
  for (int i = 0; i < 32; ++i) r |= (v >> i & 1) << (31 - i);
  return r;
}
inline float __shfl_xor_sync(uint32_t, float value, int mask) {
  const unsigned from = simt::current->lane ^ static_cast<unsigned>(mask);
  return std::bit_cast<float>(simt::shuffle(std::bit_cast<uint32_t>(value), from));
}
// The lowest lanes keep their own.
inline float __shfl_up_sync(uint32_t, float value, unsigned delta) {
  const unsigned own = simt::current->lane, from = own < delta ? own : own - delta;
  return std::bit_cast<float>(simt::shuffle(std::bit_cast<uint32_t>(value), from));
}
inline float __shfl_sync(uint32_t, float value, int lane, int width) {
  const auto own = static_cast<int>(simt::current->lane);
  const auto from = static_cast<unsigned>((own & -width) | (lane & (width - 1)));
  return std::bit_cast<float>(simt::shuffle(std::bit_cast<uint32_t>(value), from));
}
inline void __syncthreads() { simt::sync_block(); }
inline void __syncwarp() { simt::sync_warp(); }
