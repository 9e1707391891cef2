// simd.h in plain C++. Every machine runs it. It shows what the other ones must do.
#pragma once

namespace fastnorm::cpu {
namespace {

using Vec = float;
inline constexpr int kLanes = 1;
inline constexpr int kStreamBytes = 1;  // no streaming stores
inline constexpr int kUnroll = 1;
inline constexpr int kApplyPairs = 1;
inline constexpr bool kPrefetchInCache = false;
inline constexpr bool kReadAhead = false;
inline constexpr int kMomentParts = 1;
inline constexpr bool kGeneralOnly = true;

struct Pair {
  Vec a, b;
};

FASTNORM_INLINE Vec zero() { return 0.0f; }
FASTNORM_INLINE Vec broadcast(float f) { return f; }
FASTNORM_INLINE float lowest(Vec v) { return v; }
FASTNORM_INLINE Vec add(Vec a, Vec b) { return a + b; }
FASTNORM_INLINE Vec sub(Vec a, Vec b) { return a - b; }
FASTNORM_INLINE Vec mul(Vec a, Vec b) { return a * b; }
FASTNORM_INLINE Vec fused(Vec a, Vec b, Vec c) { return __builtin_fmaf(a, b, c); }
FASTNORM_INLINE Vec fused_minus(Vec a, Vec b, Vec c) { return __builtin_fmaf(a, b, -c); }
FASTNORM_INLINE Vec divide(Vec a, Vec b) { return a / b; }
FASTNORM_INLINE Vec at_least(Vec v, Vec low) { return v < low ? low : v; }
FASTNORM_INLINE Vec at_most(Vec v, Vec high) { return v > high ? high : v; }
FASTNORM_INLINE Vec if_less(Vec x, Vec y, Vec a, Vec b) { return x < y ? a : b; }
FASTNORM_INLINE Vec magnitude(Vec v) { return __builtin_fabsf(v); }
FASTNORM_INLINE Vec with_sign(Vec v, Vec sign) {
  return from_bits(bits_of(v) | (bits_of(sign) & 0x80000000));
}
FASTNORM_INLINE Vec exponent_from_bits(Vec v) { return from_bits(bits_of(v) << 23); }
FASTNORM_INLINE float sum_lanes(Vec v) { return v; }
FASTNORM_INLINE float square_root(float f) { return __builtin_sqrtf(f); }

FASTNORM_INLINE float decode(F32, uint32_t u) { return from_bits(u); }
FASTNORM_INLINE float decode(BF16, uint32_t u) { return from_bits(u << 16); }
__attribute__((noinline)) inline float decode(F16, uint32_t u) {
  const uint32_t sign = (u & 0x8000) << 16, magnitude = u & 0x7fff;
  if (magnitude >= 0x7c00) {  // Inf, or NaN, which becomes quiet
    const uint32_t quiet = magnitude > 0x7c00 ? 0x400000 : 0;
    return from_bits(sign | 0x7f800000 | quiet | magnitude << 13);
  }
  // As f32 the same bits are 2^-112 times the value, also for subnormals.
  return from_bits(sign | bits_of(from_bits(magnitude << 13) * 0x1p112f));
}

FASTNORM_INLINE uint32_t encode(F32, float f) { return bits_of(f); }
FASTNORM_INLINE uint32_t encode(BF16, float f) {
  const uint32_t u = bits_of(f);
  if ((u & 0x7fffffff) > 0x7f800000) return u >> 16 | 0x40;  // NaN stays NaN
  return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
__attribute__((noinline)) inline uint32_t encode(F16, float f) {
  const uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x47800000) return sign | 0x7c00;  // 65536 or more
  if (magnitude < 0x38800000) {
    // Below 2^-14 the unit is 2^-24. Adding 0.5, which has that unit, rounds to it.
    return sign | (bits_of(from_bits(magnitude) + 0.5f) - 0x3f000000);
  }
  // 65520 or more rounds up to 0x7c00, which is Inf.
  return sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
}

template <class T>
FASTNORM_INLINE Vec round(T type, Vec v) {
  return decode(type, encode(type, v));
}
FASTNORM_INLINE Vec round(F32, Vec v) { return v; }

FASTNORM_INLINE uint32_t load_bits(const char* p, int bytes) {
  uint32_t u = 0;
  if (bytes == 4) {
    __builtin_memcpy(&u, p, 4);
  } else {
    __builtin_memcpy(&u, p, 2);
  }
  return u;
}

template <class T>
FASTNORM_INLINE Pair load(T type, const char* p) {
  return {decode(type, load_bits(p, T::kBytes)), decode(type, load_bits(p + T::kBytes, T::kBytes))};
}
template <class T>
FASTNORM_INLINE Pair load_some(T type, const char* p, int count) {
  return {count > 0 ? decode(type, load_bits(p, T::kBytes)) : 0.0f,
          count > 1 ? decode(type, load_bits(p + T::kBytes, T::kBytes)) : 0.0f};
}

template <class T>
FASTNORM_INLINE void store_some(T type, char* p, Pair v, int count) {
  const uint32_t a = encode(type, v.a), b = encode(type, v.b);
  if (count > 0) __builtin_memcpy(p, &a, T::kBytes);
  if (count > 1) __builtin_memcpy(p + T::kBytes, &b, T::kBytes);
}
template <class T>
FASTNORM_INLINE void store(T type, char* p, Pair v) {
  store_some(type, p, v, 2);
}
template <class T>
FASTNORM_INLINE void stream(T type, char* p, Pair v) {
  store(type, p, v);
}
FASTNORM_INLINE void end_stream() {}

template <class T>
FASTNORM_INLINE Pair to_layout(T, Pair v) {
  return v;
}
template <class T>
FASTNORM_INLINE Pair from_layout(T, Pair v) {
  return v;
}
template <class T>
FASTNORM_INLINE Pair first(T, Pair v, int count) {
  return {count > 0 ? v.a : 0.0f, count > 1 ? v.b : 0.0f};
}

}  // namespace
}  // namespace fastnorm::cpu
