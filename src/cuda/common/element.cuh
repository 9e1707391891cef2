// The element types of rows: how 16 bytes become f32 values and back, with one rounding to nearest
// even.
#pragma once

#include <cstdint>

#include "core/common/dtype.h"
#include "cuda/common/ptx/math.cuh"

namespace fastnorm::cuda {

inline constexpr int kVectorBytes = 16;

__device__ __forceinline__ uint32_t word_of(const uint4& v, int word) {
  return word == 0 ? v.x : word == 1 ? v.y : word == 2 ? v.z : v.w;
}

// Four f32 values as 16 bytes, and back.
__device__ __forceinline__ uint4 as_words(const float* f) {
  return make_uint4(__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]),
                    __float_as_uint(f[3]));
}
__device__ __forceinline__ void as_floats(float* f, const uint4& v) {
  f[0] = __uint_as_float(v.x), f[1] = __uint_as_float(v.y);
  f[2] = __uint_as_float(v.z), f[3] = __uint_as_float(v.w);
}

// Of arrays in registers: one value to all places, and those of another array.
template <class Value, int kCount>
__device__ __forceinline__ void fill_values(Value (&to)[kCount], Value value) {
#pragma unroll
  for (Value& v : to) v = value;
}
template <class Value, int kCount>
__device__ __forceinline__ void copy_values(Value (&to)[kCount], const Value (&from)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = from[i];
}

template <Dtype kDtype>
struct Element;

template <>
struct Element<Dtype::kF32> {
  static constexpr Dtype kDtype = Dtype::kF32;
  static constexpr int kBytes = 4;
  static constexpr int kPerVector = kVectorBytes / kBytes;
  static constexpr int kPerWord = 4 / kBytes;
  static constexpr uint32_t kOneWord = 0x3f800000;        // 1 in every element of a word
  static constexpr uint32_t kMinusZeroWord = 0x80000000;  // -0 in every element of a word

  static __device__ __forceinline__ void unpack(uint4 v, float (&f)[kPerVector]) {
    as_floats(f, v);
  }
  static __device__ __forceinline__ void unpack_word(uint32_t word, float* f) {
    f[0] = __uint_as_float(word);
  }
  static __device__ __forceinline__ uint4 pack(const float (&f)[kPerVector]) { return as_words(f); }
  static __device__ __forceinline__ float round(float f) { return f; }
};

// What both 16-bit dtypes have. E packs and unpacks two elements as a word.
template <class E>
struct HalfElement {
  static constexpr int kBytes = 2;
  static constexpr int kPerVector = kVectorBytes / kBytes;
  static constexpr int kPerWord = 4 / kBytes;
  static constexpr uint32_t kMinusZeroWord = 0x80008000;

  static __device__ __forceinline__ void unpack(uint4 v, float (&f)[kPerVector]) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) E::unpack_word(words[i], f + 2 * i);
  }
  static __device__ __forceinline__ uint4 pack(const float (&f)[kPerVector]) {
    return make_uint4(E::pack_word(f[0], f[1]), E::pack_word(f[2], f[3]), E::pack_word(f[4], f[5]),
                      E::pack_word(f[6], f[7]));
  }
};

template <>
struct Element<Dtype::kF16> : HalfElement<Element<Dtype::kF16>> {
  static constexpr Dtype kDtype = Dtype::kF16;
  static constexpr uint32_t kOneWord = 0x3c003c00;

  static __device__ __forceinline__ void unpack_word(uint32_t word, float* f) {
    f[0] = ptx::cvt_from_f16(word & 0xffff), f[1] = ptx::cvt_from_f16(word >> 16);
  }
  static __device__ __forceinline__ uint32_t pack_word(float low, float high) {
    return ptx::cvt_f16x2(low, high);
  }
  template <uint32_t kBit>
  static __device__ __forceinline__ void round_if(float& a, float& b, uint32_t bits) {
    ptx::round_f16_if<kBit>(a, b, bits);
  }
  static __device__ __forceinline__ uint32_t fma_word(uint32_t a, uint32_t b, uint32_t c) {
    return ptx::fma_f16x2(a, b, c);
  }
  static __device__ __forceinline__ float round(float f) {
    return ptx::cvt_from_f16(ptx::cvt_f16x2(f, 0.0f) & 0xffff);
  }
};

template <>
struct Element<Dtype::kBF16> : HalfElement<Element<Dtype::kBF16>> {
  static constexpr Dtype kDtype = Dtype::kBF16;
  static constexpr uint32_t kOneWord = 0x3f803f80;

  static __device__ __forceinline__ void unpack_word(uint32_t word, float* f) {
    f[0] = __uint_as_float(word << 16), f[1] = __uint_as_float(word & 0xffff0000u);
  }
  static __device__ __forceinline__ uint32_t pack_word(float low, float high) {
    return ptx::cvt_bf16x2(low, high);
  }
  template <uint32_t kBit>
  static __device__ __forceinline__ void round_if(float& a, float& b, uint32_t bits) {
    ptx::round_bf16_if<kBit>(a, b, bits);
  }
  static __device__ __forceinline__ uint32_t fma_word(uint32_t a, uint32_t b, uint32_t c) {
    return ptx::fma_bf16x2(a, b, c);
  }
  static __device__ __forceinline__ float round(float f) {
    return __uint_as_float(ptx::cvt_bf16x2(f, 0.0f) << 16);
  }
};

// The two 16-bit dtypes of operands of an x of T, by OperandType: kOther16, and the one that is
// neither that nor f32.
template <class T>
struct Halves {
  using First = Element<Dtype::kF16>;
  using Other = Element<Dtype::kBF16>;
};
template <>
struct Halves<Element<Dtype::kBF16>> {
  using First = Element<Dtype::kBF16>;
  using Other = Element<Dtype::kF16>;
};

// On words of 16-bit elements, rounded once: additions, and products with a + 0, which turns -0
// into +0.
template <class T>
__device__ __forceinline__ uint32_t add_words(uint32_t a, uint32_t b) {
  return T::fma_word(a, T::kOneWord, b);
}
template <class T>
__device__ __forceinline__ uint32_t multiply_words(uint32_t a, uint32_t b) {
  return T::fma_word(a, b, T::kMinusZeroWord);
}

template <class T>
__device__ __forceinline__ uint4 add_vectors(uint4 a, uint4 b) {
  return make_uint4(add_words<T>(a.x, b.x), add_words<T>(a.y, b.y), add_words<T>(a.z, b.z),
                    add_words<T>(a.w, b.w));
}

}  // namespace fastnorm::cuda
