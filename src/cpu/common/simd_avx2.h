// simd.h for AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

namespace fastnorm::cpu {
namespace {

using Vec = __m256;
inline constexpr int kLanes = 8;
inline constexpr int kStreamBytes = 32;
inline constexpr int kUnroll = 16;
inline constexpr int kApplyPairs = 2;
inline constexpr bool kPrefetchInCache = false;
inline constexpr bool kReadAhead = false;
inline constexpr int kMomentParts = 2;
inline constexpr bool kGeneralOnly = false;

struct Pair {
  Vec a, b;
};

FASTNORM_INLINE Vec zero() { return _mm256_setzero_ps(); }
FASTNORM_INLINE Vec broadcast(float f) { return _mm256_set1_ps(f); }
FASTNORM_INLINE float lowest(Vec v) { return _mm256_cvtss_f32(v); }
FASTNORM_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
FASTNORM_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
FASTNORM_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
FASTNORM_INLINE Vec fused(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
FASTNORM_INLINE Vec fused_minus(Vec a, Vec b, Vec c) { return _mm256_fmsub_ps(a, b, c); }
FASTNORM_INLINE Vec divide(Vec a, Vec b) { return _mm256_div_ps(a, b); }
// If one operand is NaN, the instructions return the second one.
FASTNORM_INLINE Vec at_least(Vec v, Vec low) { return _mm256_max_ps(low, v); }
FASTNORM_INLINE Vec at_most(Vec v, Vec high) { return _mm256_min_ps(high, v); }
FASTNORM_INLINE Vec if_less(Vec x, Vec y, Vec a, Vec b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_LT_OQ));
}
FASTNORM_INLINE Vec magnitude(Vec v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
FASTNORM_INLINE Vec with_sign(Vec v, Vec sign) {
  return _mm256_or_ps(v, _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}
FASTNORM_INLINE Vec exponent_from_bits(Vec v) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 23));
}

FASTNORM_INLINE float sum_lanes(Vec v) {  // halves, from the highest digit of the lane down
  const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
  return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}
FASTNORM_INLINE float square_root(float f) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(f))); }

FASTNORM_INLINE __m256i load_bits(const char* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
FASTNORM_INLINE void store_bits(char* p, __m256i v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}

template <int kWords>
FASTNORM_INLINE void copy_piece(char*& to, const char*& from, int count) {
  if ((count & kWords) == 0) return;
  __builtin_memcpy(to, from, kWords * 2);
  to += kWords * 2;
  from += kWords * 2;
}
// At most 16. In pieces: around a call of memcpy the kernels would save all their vectors.
FASTNORM_INLINE void copy_words(char* to, const char* from, int count) {
  copy_piece<16>(to, from, count);
  copy_piece<8>(to, from, count);
  copy_piece<4>(to, from, count);
  copy_piece<2>(to, from, count);
  copy_piece<1>(to, from, count);
}

// AVX2 has no masked access to 16-bit elements. They go through 32 bytes on the stack. Not inlined:
// a row has few of them, and each copy would add code to every kernel.
__attribute__((noinline)) __m256i load_some_words(const char* p, int count) {
  alignas(32) char buffer[32] = {};
  copy_words(buffer, p, count);
  return load_bits(buffer);
}
__attribute__((noinline)) void store_some_words(char* p, __m256i v, int count) {
  alignas(32) char buffer[32];
  store_bits(buffer, v);
  copy_words(p, buffer, count);
}

// All ones in the lanes below `count`.
FASTNORM_INLINE __m256i lanes_below(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

FASTNORM_INLINE Pair from_halves(__m256i v) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(v)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1))};
}
FASTNORM_INLINE Pair from_brains(__m256i v) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(v, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(-65536)))};
}

FASTNORM_INLINE Pair load(F32, const char* p) {
  return {_mm256_loadu_ps(reinterpret_cast<const float*>(p)),
          _mm256_loadu_ps(reinterpret_cast<const float*>(p + 32))};
}
FASTNORM_INLINE Pair load(F16, const char* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
FASTNORM_INLINE Pair load(BF16, const char* p) { return from_brains(load_bits(p)); }

FASTNORM_INLINE Pair load_some(F32, const char* p, int count) {
  return {_mm256_maskload_ps(reinterpret_cast<const float*>(p), lanes_below(count)),
          _mm256_maskload_ps(reinterpret_cast<const float*>(p + 32), lanes_below(count - kLanes))};
}
FASTNORM_INLINE Pair load_some(F16, const char* p, int count) {
  return from_halves(load_some_words(p, count));
}
FASTNORM_INLINE Pair load_some(BF16, const char* p, int count) {
  return from_brains(load_some_words(p, count));
}

FASTNORM_INLINE __m128i to_halves(Vec v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
FASTNORM_INLINE __m256i to_halves(Pair v) {
  return _mm256_set_m128i(to_halves(v.b), to_halves(v.a));
}

// bf16 in the upper half of each lane, rounded by integer addition. The lower half is undefined.
FASTNORM_INLINE __m256i brain_above(Vec v) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
}
// As brain_above. NaN stays NaN and becomes quiet.
FASTNORM_INLINE __m256i brain_or_nan_above(Vec v) {
  const __m256i quiet = _mm256_or_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x400000));
  const __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  return _mm256_blendv_epi8(brain_above(v), quiet, _mm256_castps_si256(is_nan));
}
FASTNORM_INLINE __m256i interleave_brains(__m256i even, __m256i odd) {
  return _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
}
FASTNORM_INLINE __m256i to_brains(Pair v) {
  if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(v.a, v.b, _CMP_UNORD_Q)) == 0, 1)) {
    return interleave_brains(brain_above(v.a), brain_above(v.b));
  }
  return interleave_brains(brain_or_nan_above(v.a), brain_or_nan_above(v.b));
}

FASTNORM_INLINE void store(F32, char* p, Pair v) {
  _mm256_storeu_ps(reinterpret_cast<float*>(p), v.a);
  _mm256_storeu_ps(reinterpret_cast<float*>(p + 32), v.b);
}
FASTNORM_INLINE void store(F16, char* p, Pair v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_halves(v.a));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16), to_halves(v.b));
}
FASTNORM_INLINE void store(BF16, char* p, Pair v) { store_bits(p, to_brains(v)); }

FASTNORM_INLINE void stream(F32, char* p, Pair v) {
  _mm256_stream_ps(reinterpret_cast<float*>(p), v.a);
  _mm256_stream_ps(reinterpret_cast<float*>(p + 32), v.b);
}
FASTNORM_INLINE void stream(F16, char* p, Pair v) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_halves(v));
}
FASTNORM_INLINE void stream(BF16, char* p, Pair v) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_brains(v));
}
FASTNORM_INLINE void end_stream() { _mm_sfence(); }

FASTNORM_INLINE void store_some(F32, char* p, Pair v, int count) {
  _mm256_maskstore_ps(reinterpret_cast<float*>(p), lanes_below(count), v.a);
  _mm256_maskstore_ps(reinterpret_cast<float*>(p + 32), lanes_below(count - kLanes), v.b);
}
FASTNORM_INLINE void store_some(F16, char* p, Pair v, int count) {
  store_some_words(p, to_halves(v), count);
}
FASTNORM_INLINE void store_some(BF16, char* p, Pair v, int count) {
  store_some_words(p, to_brains(v), count);
}

FASTNORM_INLINE Vec round(F32, Vec v) { return v; }
FASTNORM_INLINE Vec round(F16, Vec v) { return _mm256_cvtph_ps(to_halves(v)); }
FASTNORM_INLINE Vec round(BF16, Vec v) {
  return _mm256_castsi256_ps(_mm256_and_si256(brain_or_nan_above(v), _mm256_set1_epi32(-65536)));
}

template <class T>
FASTNORM_INLINE Pair to_layout(T, Pair v) {
  return v;
}
FASTNORM_INLINE Pair to_layout(BF16, Pair v) {
  constexpr int kEven = 0x88, kOdd = 0xdd, kOrder = 0xd8;  // kOrder: 64-bit parts 0, 2, 1, 3
  const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(v.a, v.b, kEven));
  const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(v.a, v.b, kOdd));
  return {_mm256_castpd_ps(_mm256_permute4x64_pd(even, kOrder)),
          _mm256_castpd_ps(_mm256_permute4x64_pd(odd, kOrder))};
}
template <class T>
FASTNORM_INLINE Pair from_layout(T, Pair v) {
  return v;
}
FASTNORM_INLINE Pair from_layout(BF16, Pair v) {
  const __m256 low = _mm256_unpacklo_ps(v.a, v.b), high = _mm256_unpackhi_ps(v.a, v.b);
  return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}

FASTNORM_INLINE Vec first_lanes(Vec v, int count) {
  return _mm256_and_ps(v, _mm256_castsi256_ps(lanes_below(count)));
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
