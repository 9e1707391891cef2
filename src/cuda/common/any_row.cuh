// A row of any dtype at any address, which are asked at run time: Access::kAny of the forward, and
// the general forms of the gradients.
#pragma once

#include "cuda/common/access.cuh"
#include "cuda/common/rows.h"

namespace fastnorm::cuda {

// The dtype of a row, as an OperandType of an x of T or as it is.
template <class T>
__device__ __forceinline__ bool is_f32(OperandType type) {
  return type == (T::kBytes == 2 ? OperandType::kF32 : OperandType::kElement);
}
template <class T>
__device__ __forceinline__ bool is_f32(Dtype dtype) {
  return dtype == Dtype::kF32;
}
template <class T>
__device__ __forceinline__ bool is_other_half(OperandType type) {
  return type == OperandType::kOther16;
}
template <class T>
__device__ __forceinline__ bool is_other_half(Dtype dtype) {
  return dtype == Halves<T>::Other::kDtype;
}
template <class T, class Type>
__device__ __forceinline__ int element_bytes(Type type) {
  return is_f32<T>(type) ? 4 : 2;
}

// 16-bit elements, two in a word, to f32; and back with one rounding.
template <class T, class Type>
__device__ __forceinline__ void unpack_halves(const uint32_t (&words)[T::kPerVector / 2],
                                              float (&f)[T::kPerVector], Type type) {
  if (is_other_half<T>(type)) {
#pragma unroll
    for (int k = 0; k < T::kPerVector / 2; ++k) Halves<T>::Other::unpack_word(words[k], f + 2 * k);
  } else {
#pragma unroll
    for (int k = 0; k < T::kPerVector / 2; ++k) Halves<T>::First::unpack_word(words[k], f + 2 * k);
  }
}
template <class T, class Type>
__device__ __forceinline__ void pack_halves(uint32_t (&words)[T::kPerVector / 2],
                                            const float (&f)[T::kPerVector], Type type) {
  if (is_other_half<T>(type)) {
#pragma unroll
    for (int k = 0; k < T::kPerVector / 2; ++k)
      words[k] = Halves<T>::Other::pack_word(f[2 * k], f[2 * k + 1]);
  } else {
#pragma unroll
    for (int k = 0; k < T::kPerVector / 2; ++k)
      words[k] = Halves<T>::First::pack_word(f[2 * k], f[2 * k + 1]);
  }
}

// One element of a row of such a dtype.
template <class T, class Type>
__device__ __forceinline__ float load_operand(const char* address, Type type) {
  if (is_f32<T>(type)) return ptx::ld_global_f32(address);
  const uint32_t bits = ptx::ld_global_u16(address);
  float pair[2];
  if (is_other_half<T>(type)) {
    Halves<T>::Other::unpack_word(bits, pair);
  } else {
    Halves<T>::First::unpack_word(bits, pair);
  }
  return pair[0];
}

__device__ __forceinline__ float load_any_element(const char* address, Dtype dtype) {
  return load_operand<Element<Dtype::kF32>>(address, dtype);
}
__device__ __forceinline__ void store_any_element(char* address, float f, Dtype dtype) {
  if (dtype == Dtype::kF32) {
    ptx::st_global_u32(address, __float_as_uint(f));
  } else if (dtype == Dtype::kBF16) {
    ptx::st_global_u16(address, Element<Dtype::kBF16>::pack_word(f, 0.0f) & 0xffff);
  } else {
    ptx::st_global_u16(address, Element<Dtype::kF16>::pack_word(f, 0.0f) & 0xffff);
  }
}

// The alignment of rows about which the host says nothing: their addresses tell.
inline constexpr int kUnknownAlign = 2;

// A row whose vectors have as many elements as those of x, which has T's dtype. Byte is char or
// const char, Type OperandType or Dtype. An optional row is absent if `data` is nullptr.
template <class T, class Byte, class Type = OperandType>
struct AnyRow {
  static constexpr int kPerVector = T::kPerVector;

  // `least`: the widest access that all rows of the tensor allow. If it is 2, most rows allow more,
  // so the row's own address decides.
  __device__ __forceinline__ AnyRow(Byte* address, int least, Type row_type)
      : data(address), bytes(least > 2 ? least : access_bytes(address)), type(row_type) {}
  __device__ __forceinline__ AnyRow(Byte* address, Type row_type)
      : AnyRow(address, kUnknownAlign, row_type) {}

  __device__ __forceinline__ bool is_f32() const { return cuda::is_f32<T>(type); }
  __device__ __forceinline__ Byte* at(int64_t vector) const {
    return data + vector * (kPerVector * element_bytes<T>(type));
  }
  __device__ __forceinline__ float element(int64_t i) const {
    return load_operand<T>(data + i * element_bytes<T>(type), type);
  }

  Byte* const data;
  const int bytes;  // of the widest access
  const Type type;
};

// Vectors of such a row, as loaded.
template <class T, int kCount>
struct AnyVectors {
  // Loads vector `first` and every `stride`-th after it, if has(i).
  template <class Byte, class Type, typename Has>
  __device__ __forceinline__ void load(const AnyRow<T, Byte, Type>& row, int64_t first,
                                       int64_t stride, Has has) {
    const char* const address = row.at(first);
    const int64_t step = row.at(stride) - row.data;
    if (T::kBytes == 4 && !row.is_f32()) return load_half_words(low, address, step, row.bytes, has);
    load_words(low, address, step, row.bytes, has);
    if constexpr (T::kBytes == 2)
      load_words(high, address + kVectorBytes, step, row.bytes,
                 [&](int i) { return row.is_f32() && has(i); });
  }

  // Loads one vector, of which the row has the first `count` elements. The others are zero. An
  // incomplete vector takes a loop over elements, whose code is short.
  template <class Byte, class Type>
  __device__ __forceinline__ void load_part(const AnyRow<T, Byte, Type>& row, int64_t vector,
                                            int count) {
    const char* address = row.at(vector);
    if (count >= T::kPerVector) return load_whole(address, row);
    const auto put = [](uint4& v, int word, uint32_t bits) {
      v.x |= word == 0 ? bits : 0, v.y |= word == 1 ? bits : 0;
      v.z |= word == 2 ? bits : 0, v.w |= word == 3 ? bits : 0;
    };
    low[0] = make_uint4(0, 0, 0, 0);
    if constexpr (T::kBytes == 2) high[0] = make_uint4(0, 0, 0, 0);
    if (row.is_f32()) {
#pragma unroll 1
      for (int i = 0; i < count; ++i, address += 4) {
        const uint32_t bits = ptx::ld_global_u32(address);
        put(low[0], i, bits);
        if constexpr (T::kBytes == 2) put(high[0], i - 4, bits);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < count; ++i, address += 2)
        put(low[0], i / 2, ptx::ld_global_u16(address) << (i % 2 * 16));
    }
  }

  // `type`: of the row from which they were loaded.
  template <class Type>
  __device__ __forceinline__ void take(float (&f)[T::kPerVector], int i, Type type) const {
    if (!is_f32<T>(type)) {
      if constexpr (T::kBytes == 2) {
        unpack_halves<T>({low[i].x, low[i].y, low[i].z, low[i].w}, f, type);
      } else {
        unpack_halves<T>({low[i].x, low[i].y}, f, type);
      }
      return;
    }
    as_floats(f, low[i]);
    if constexpr (T::kBytes == 2) as_floats(f + 4, high[i]);
  }

  uint4 low[kCount], high[T::kBytes == 2 ? kCount : 1];

 private:
  // As load() does, in code for one vector.
  template <class Byte, class Type>
  __device__ __forceinline__ void load_whole(const char* address,
                                             const AnyRow<T, Byte, Type>& row) {
    const auto always = [](int) { return true; };
    if (T::kBytes == 4) {
      if (!row.is_f32()) return load_half_words(low, address, 0, row.bytes, always);
      load_words<4>(low, address, 0, row.bytes, always);
    } else if (row.is_f32()) {
      uint4 both[2];
      load_words<4>(both, address, kVectorBytes, row.bytes, always);
      low[0] = both[0], high[0] = both[1];
    } else {
      load_words(low, address, 0, row.bytes, always);
      high[0] = make_uint4(0, 0, 0, 0);
    }
  }
};

// A vector as f32.
template <class T, class Byte, class Type>
__device__ __forceinline__ void load_values(float (&f)[T::kPerVector],
                                            const AnyRow<T, Byte, Type>& row, int64_t vector) {
  AnyVectors<T, 1> loaded;
  loaded.load(row, vector, 0, [](int) { return true; });
  loaded.take(f, 0, row.type);
}

// The first `count` values of a vector, one at a time. The others are zero.
template <class T, class Byte, class Type>
__device__ __forceinline__ void load_short_values(float (&f)[T::kPerVector],
                                                  const AnyRow<T, Byte, Type>& row, int64_t vector,
                                                  int count) {
  const char* const address = row.at(vector);
  uint32_t words[T::kPerVector / 2] = {};
#pragma unroll
  for (int i = 0; i < T::kPerVector; ++i) {
    f[i] = 0.0f;
    if (i >= count) continue;
    if (row.is_f32()) {
      f[i] = ptx::ld_global_f32(address + i * 4);
    } else {
      words[i / 2] |= ptx::ld_global_u16(address + i * 2) << (i % 2 * 16);
    }
  }
  if (!row.is_f32()) unpack_halves<T>(words, f, row.type);
}

template <class T, class Type>
__device__ __forceinline__ void store_values(const float (&f)[T::kPerVector],
                                             const AnyRow<T, char, Type>& row, int64_t vector) {
  char* const address = row.at(vector);
  uint4 low;
  if (row.is_f32()) {
    low = as_words(f);
    if constexpr (T::kBytes == 2) store_whole(address + kVectorBytes, as_words(f + 4), row.bytes);
  } else {
    uint32_t words[T::kPerVector / 2];
    pack_halves<T>(words, f, row.type);
    if constexpr (T::kBytes == 4) {
      return store_half_words(address, words[0], words[1], row.bytes);
    } else {
      low = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
  store_whole(address, low, row.bytes);
}

template <class T, class Type>
__device__ __forceinline__ void store_short_values(const float (&f)[T::kPerVector],
                                                   const AnyRow<T, char, Type>& row, int64_t vector,
                                                   int count) {
  char* const address = row.at(vector);
  uint32_t words[T::kPerVector / 2];
  pack_halves<T>(words, f, row.type);
#pragma unroll
  for (int i = 0; i < T::kPerVector; ++i) {
    if (i >= count) break;
    if (row.is_f32()) {
      ptx::st_global_u32(address + i * 4, __float_as_uint(f[i]));
    } else {
      ptx::st_global_u16(address + i * 2, words[i / 2] >> i % 2 * 16);
    }
  }
}

// What the code knows of a vector when it is compiled: that only a part of it is in the row, or
// nothing but its count.
enum class Part { kShort, kCounted };

template <Part kPart, class T, class Byte, class Type>
__device__ __forceinline__ void load_part(float (&f)[T::kPerVector],
                                          const AnyRow<T, Byte, Type>& row, int64_t vector,
                                          int count) {
  if (kPart == Part::kCounted && count >= T::kPerVector) {
    load_values<T>(f, row, vector);
  } else {
    load_short_values<T>(f, row, vector, count);
  }
}

template <Part kPart, class T, class Type>
__device__ __forceinline__ void store_part(const float (&f)[T::kPerVector],
                                           const AnyRow<T, char, Type>& row, int64_t vector,
                                           int count) {
  if (kPart == Part::kCounted && count >= T::kPerVector) {
    store_values<T>(f, row, vector);
  } else {
    store_short_values<T>(f, row, vector, count);
  }
}

// A weight as a forward multiplies by it: gain_of(value), and 1 where the row is absent.
template <class T, class Byte, class Type, typename GainOf>
__device__ __forceinline__ void load_factors(float (&gain)[T::kPerVector],
                                             const AnyRow<T, Byte, Type>& weight, int64_t vector,
                                             int count, GainOf gain_of) {
  if (weight.data == nullptr) {
    fill_values(gain, 1.0f);
    return;
  }
  AnyVectors<T, 1> loaded;
  loaded.load_part(weight, vector, count);
  loaded.take(gain, 0, weight.type);
#pragma unroll
  for (float& g : gain) g = gain_of(g);
}

// A thread's share of a row, stored to any address. A loop over vectors, because the code for one
// is long.
template <class T, class Type, class Tile, class Reach>
__device__ __forceinline__ void store_row(const float (&values)[Tile::kVectors][T::kPerVector],
                                          const AnyRow<T, char, Type>& row,
                                          const Place<Tile>& place, const Reach& reach) {
#pragma unroll 1
  for (int v = 0; v < Tile::kVectors && reach.has(v); ++v) {
    float f[T::kPerVector];
    pick_vector(f, values, v);
    store_part<Part::kCounted, T>(f, row, place.vector(v), reach.count(v));
  }
}

}  // namespace fastnorm::cuda
