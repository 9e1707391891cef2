// Approximations that start a refinement, and conversions.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

__device__ __forceinline__ float rsqrt_approx(float v) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

__device__ __forceinline__ float rcp_approx(float v) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

// The greater and the lesser of two; NaN if either is NaN.
__device__ __forceinline__ float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

__device__ __forceinline__ float min_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// Two f32 to a pair of 16-bit numbers, rounded to nearest even, subnormals kept. `low` is in the
// low half.
__device__ __forceinline__ uint32_t cvt_f16x2(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

__device__ __forceinline__ uint32_t cvt_bf16x2(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// a * b + c of pairs of 16-bit numbers, each rounded once, subnormals kept.
__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

__device__ __forceinline__ float cvt_from_f16(uint32_t bits) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(static_cast<uint16_t>(bits)));
  return f;
}

// Rounds both to 16 bits if a bit of `bits` is set, without a branch. The bit is tested here, so
// that no register holds the result of the test.
template <uint32_t kBit>
__device__ __forceinline__ void round_f16_if(float& a, float& b, uint32_t bits) {
  asm("{\n"
      ".reg .pred wanted;\n"
      ".reg .b32 bit, pair;\n"
      ".reg .b16 low, high;\n"
      "and.b32 bit, %2, %3;\n"
      "setp.ne.u32 wanted, bit, 0;\n"
      "cvt.rn.f16x2.f32 pair, %1, %0;\n"
      "mov.b32 {low, high}, pair;\n"
      "@wanted cvt.f32.f16 %0, low;\n"
      "@wanted cvt.f32.f16 %1, high;\n"
      "}"
      : "+f"(a), "+f"(b)
      : "r"(bits), "n"(kBit));
}

template <uint32_t kBit>
__device__ __forceinline__ void round_bf16_if(float& a, float& b, uint32_t bits) {
  asm("{\n"
      ".reg .pred wanted;\n"
      ".reg .b32 bit, pair;\n"
      "and.b32 bit, %2, %3;\n"
      "setp.ne.u32 wanted, bit, 0;\n"
      "cvt.rn.bf16x2.f32 pair, %1, %0;\n"
      "@wanted shl.b32 %0, pair, 16;\n"
      "@wanted and.b32 %1, pair, 0xffff0000;\n"
      "}"
      : "+f"(a), "+f"(b)
      : "r"(bits), "n"(kBit));
}

}  // namespace fastnorm::ptx
