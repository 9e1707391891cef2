// simd.h for the base vectors of AArch64. `stream` is `store`: compilers offer no streaming store
// that keeps the order cheaply.
#pragma once

#include <arm_neon.h>

namespace fastnorm::cpu {
namespace {

using Vec = float32x4_t;
inline constexpr int kLanes = 4;
inline constexpr int kStreamBytes = 1;  // no streaming stores
inline constexpr int kUnroll = 16;
inline constexpr int kApplyPairs = 4;
inline constexpr bool kPrefetchInCache = false;
inline constexpr bool kReadAhead = false;
inline constexpr int kMomentParts = 2;
inline constexpr bool kGeneralOnly = false;

struct Pair {
  Vec a, b;
};

FASTNORM_INLINE Vec zero() { return vdupq_n_f32(0.0f); }
FASTNORM_INLINE Vec broadcast(float f) { return vdupq_n_f32(f); }
FASTNORM_INLINE float lowest(Vec v) { return vgetq_lane_f32(v, 0); }
FASTNORM_INLINE Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
FASTNORM_INLINE Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
FASTNORM_INLINE Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
FASTNORM_INLINE Vec fused(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
FASTNORM_INLINE Vec fused_minus(Vec a, Vec b, Vec c) { return vfmaq_f32(vnegq_f32(c), a, b); }
FASTNORM_INLINE Vec divide(Vec a, Vec b) { return vdivq_f32(a, b); }
FASTNORM_INLINE Vec at_least(Vec v, Vec low) { return vmaxq_f32(v, low); }  // NaN stays NaN
FASTNORM_INLINE Vec at_most(Vec v, Vec high) { return vminq_f32(v, high); }
FASTNORM_INLINE Vec if_less(Vec x, Vec y, Vec a, Vec b) { return vbslq_f32(vcltq_f32(x, y), a, b); }
FASTNORM_INLINE Vec magnitude(Vec v) { return vabsq_f32(v); }
FASTNORM_INLINE Vec with_sign(Vec v, Vec sign) {
  const uint32x4_t bit = vandq_u32(vreinterpretq_u32_f32(sign), vdupq_n_u32(0x80000000));
  return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(v), bit));
}
FASTNORM_INLINE Vec exponent_from_bits(Vec v) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(v), 23));
}

FASTNORM_INLINE float sum_lanes(Vec v) {  // halves, from the highest digit of the lane down
  const float32x2_t v2 = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(v2, 0) + vget_lane_f32(v2, 1);
}
FASTNORM_INLINE float square_root(float f) { return __builtin_sqrtf(f); }

FASTNORM_INLINE uint16x8_t load_words(const char* p) {
  return vreinterpretq_u16_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
}
FASTNORM_INLINE void store_words(char* p, uint16x8_t v) {
  vst1q_u8(reinterpret_cast<uint8_t*>(p), vreinterpretq_u8_u16(v));
}
FASTNORM_INLINE Vec load_floats(const char* p) {
  return vreinterpretq_f32_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
}
FASTNORM_INLINE void store_floats(char* p, Vec v) {
  vst1q_u8(reinterpret_cast<uint8_t*>(p), vreinterpretq_u8_f32(v));
}

FASTNORM_INLINE Pair from_halves(uint16x8_t v) {
  const float16x8_t h = vreinterpretq_f16_u16(v);
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
FASTNORM_INLINE Pair from_brains(uint16x8_t v) {
  const uint32x4_t u = vreinterpretq_u32_u16(v);
  return {vreinterpretq_f32_u32(vshlq_n_u32(u, 16)),
          vreinterpretq_f32_u32(vandq_u32(u, vdupq_n_u32(0xffff0000)))};
}

FASTNORM_INLINE Pair load(F32, const char* p) { return {load_floats(p), load_floats(p + 16)}; }
FASTNORM_INLINE Pair load(F16, const char* p) { return from_halves(load_words(p)); }
FASTNORM_INLINE Pair load(BF16, const char* p) { return from_brains(load_words(p)); }

// AArch64 has no masked access. A part of a pair goes through the bytes on the stack.
template <class T>
FASTNORM_INLINE Pair load_some(T type, const char* p, int count) {
  alignas(16) char buffer[2 * kLanes * T::kBytes] = {};
  __builtin_memcpy(buffer, p, static_cast<unsigned>(count) * T::kBytes);
  return load(type, buffer);
}

FASTNORM_INLINE uint16x8_t to_halves(Pair v) {
  return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v.a), v.b));
}
// bf16 in the upper half of each lane. NaN stays NaN and becomes quiet. The lower half is
// undefined.
FASTNORM_INLINE uint32x4_t brain_above(Vec v) {
  const uint32x4_t u = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
  return vbslq_u32(vceqq_f32(v, v), rounded, vorrq_u32(u, vdupq_n_u32(0x400000)));
}
FASTNORM_INLINE uint16x8_t to_brains(Pair v) {
  return vreinterpretq_u16_u32(vsriq_n_u32(brain_above(v.b), brain_above(v.a), 16));
}

FASTNORM_INLINE void store(F32, char* p, Pair v) {
  store_floats(p, v.a);
  store_floats(p + 16, v.b);
}
FASTNORM_INLINE void store(F16, char* p, Pair v) { store_words(p, to_halves(v)); }
FASTNORM_INLINE void store(BF16, char* p, Pair v) { store_words(p, to_brains(v)); }

template <class T>
FASTNORM_INLINE void store_some(T type, char* p, Pair v, int count) {
  alignas(16) char buffer[2 * kLanes * T::kBytes];
  store(type, buffer, v);
  __builtin_memcpy(p, buffer, static_cast<unsigned>(count) * T::kBytes);
}
template <class T>
FASTNORM_INLINE void stream(T type, char* p, Pair v) {
  store(type, p, v);
}
FASTNORM_INLINE void end_stream() {}

FASTNORM_INLINE Vec round(F32, Vec v) { return v; }
FASTNORM_INLINE Vec round(F16, Vec v) { return vcvt_f32_f16(vcvt_f16_f32(v)); }
FASTNORM_INLINE Vec round(BF16, Vec v) {
  return vreinterpretq_f32_u32(vandq_u32(brain_above(v), vdupq_n_u32(0xffff0000)));
}

template <class T>
FASTNORM_INLINE Pair to_layout(T, Pair v) {
  return v;
}
FASTNORM_INLINE Pair to_layout(BF16, Pair v) {
  return {vuzp1q_f32(v.a, v.b), vuzp2q_f32(v.a, v.b)};
}
template <class T>
FASTNORM_INLINE Pair from_layout(T, Pair v) {
  return v;
}
FASTNORM_INLINE Pair from_layout(BF16, Pair v) {
  return {vzip1q_f32(v.a, v.b), vzip2q_f32(v.a, v.b)};
}

FASTNORM_INLINE Vec first_lanes(Vec v, int count) {
  const int32x4_t lane = {0, 1, 2, 3};
  const uint32x4_t below = vcltq_s32(lane, vdupq_n_s32(count));
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), below));
}
template <class T>
FASTNORM_INLINE Pair first(T, Pair v, int count) {
  return {first_lanes(v.a, count), first_lanes(v.b, count - kLanes)};
}
FASTNORM_INLINE Pair first(BF16, Pair v, int count) {
  return {first_lanes(v.a, (count + 1) / 2), first_lanes(v.b, count / 2)};
}

}  // namespace
}  // namespace fastnorm::cpu
