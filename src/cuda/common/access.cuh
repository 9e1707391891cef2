// Loads and stores of the 16-byte vectors of a row.
//
// Vector j of a row is elements j * kPerVector and on, wherever the row begins. So sums do not
// depend on alignment. An aligned vector is one access. Otherwise a vector is read by words or
// elements, as its address allows, and nothing past the row's end is accessed. The general kernels
// check each row's address. Unaligned rows go through shared memory: staged.cuh.
#pragma once

#include "core/norm_key.h"
#include "cuda/common/element.cuh"
#include "cuda/common/ptx/memory.cuh"
#include "cuda/common/tile.cuh"

namespace fastnorm::cuda {

template <int kBytes>
__device__ __forceinline__ void store_element(char* address, uint32_t bits) {
  if constexpr (kBytes == 4) {
    ptx::st_global_u32(address, bits);
  } else if constexpr (kBytes == 2) {
    ptx::st_global_u16(address, bits);
  } else {
    ptx::st_global_u8(address, bits);
  }
}

// Loads one vector. kStream: a streaming load, which leaves no line in L1.
template <bool kStream>
__device__ __forceinline__ uint4 load_vector(const char* address) {
  return kStream ? ptx::ld_global_cs_v4(address) : ptx::ld_global_v4(address);
}

// The same if `wanted`, without a branch. Otherwise raw keeps its value.
template <bool kStream>
__device__ __forceinline__ void load_vector_if(uint4& raw, const char* address, bool wanted) {
  if constexpr (kStream) {
    ptx::ld_global_cs_v4_if(raw, address, wanted);
  } else {
    ptx::ld_global_v4_if(raw, address, wanted);
  }
}

// The widest access at an address, of 16, 8, 4 and 2 bytes.
__device__ __forceinline__ int access_bytes(const void* address) {
  const uint32_t bits = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) | kVectorBytes;
  return static_cast<int>(bits & (~bits + 1));
}

template <int kBytes>
struct AccessBytes {
  static constexpr int kValue = kBytes;
};

template <int kBytes>
__device__ __forceinline__ void load_words_if(uint4& w, const char* address, bool wanted) {
  if constexpr (kBytes == 16) {
    ptx::ld_global_v4_if(w, address, wanted);
  } else if constexpr (kBytes == 8) {
    ptx::ld_global_v2_if(w.x, w.y, address, wanted);
    ptx::ld_global_v2_if(w.z, w.w, address + 8, wanted);
  } else {  // one access for the two in the middle would need other registers, and moves that wait
    ptx::ld_global_u32_if(w.x, address, wanted);
    ptx::ld_global_u32_if(w.y, address + 4, wanted);
    ptx::ld_global_u32_if(w.z, address + 8, wanted);
    ptx::ld_global_u32_if(w.w, address + 12, wanted);
  }
}

// A vector by accesses of 2 and 4 bytes. Its first and last elements are loaded by themselves.
__device__ __forceinline__ uint4 load_halves(const char* address) {
  const uint32_t first = ptx::ld_global_u16(address), a = ptx::ld_global_u32(address + 2),
                 b = ptx::ld_global_u32(address + 6), c = ptx::ld_global_u32(address + 10),
                 last = ptx::ld_global_u16(address + 14);
  return make_uint4(first | a << 16, a >> 16 | b << 16, b >> 16 | c << 16, c >> 16 | last << 16);
}

// Loads the vectors at `address` and every `step` bytes after it, if has(i). The others are zero.
// `bytes` is the size of an access. No load waits for another, except with accesses of 2 bytes.
template <int kCount, typename Has>
__device__ __forceinline__ void load_words(uint4 (&raw)[kCount], const char* address, int64_t step,
                                           int bytes, Has has) {
#pragma unroll
  for (uint4& v : raw) v = make_uint4(0, 0, 0, 0);
  const auto load = [&](auto width) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      load_words_if<decltype(width)::kValue>(raw[i], address + i * step, has(i));
  };
  if (bytes == 16) {
    load(AccessBytes<16>{});
  } else if (bytes == 8) {
    load(AccessBytes<8>{});
  } else if (bytes == 4) {
    load(AccessBytes<4>{});
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (has(i)) raw[i] = load_halves(address + i * step);
    }
  }
}

__device__ __forceinline__ void store_whole(char* address, uint4 v, int bytes) {
  if (bytes == 16) {
    ptx::st_global_v4(address, v);
  } else if (bytes == 8) {
    ptx::st_global_v2(address, make_uint2(v.x, v.y));
    ptx::st_global_v2(address + 8, make_uint2(v.z, v.w));
  } else if (bytes == 4) {
    ptx::st_global_u32(address, v.x);
    ptx::st_global_u32(address + 4, v.y);
    ptx::st_global_u32(address + 8, v.z);
    ptx::st_global_u32(address + 12, v.w);
  } else {
    ptx::st_global_u16(address, v.x);
    ptx::st_global_u32(address + 2, v.x >> 16 | v.y << 16);
    ptx::st_global_u32(address + 6, v.y >> 16 | v.z << 16);
    ptx::st_global_u32(address + 10, v.z >> 16 | v.w << 16);
    ptx::st_global_u16(address + 14, v.w >> 16);
  }
}

// The same for vectors of 8 bytes: 16-bit elements of an operand whose x is f32. They fill x and y.
template <int kCount, typename Has>
__device__ __forceinline__ void load_half_words(uint4 (&raw)[kCount], const char* address,
                                                int64_t step, int bytes, Has has) {
#pragma unroll
  for (uint4& v : raw) v = make_uint4(0, 0, 0, 0);
  if (bytes >= 8) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      ptx::ld_global_v2_if(raw[i].x, raw[i].y, address + i * step, has(i));
  } else if (bytes == 4) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      ptx::ld_global_u32_if(raw[i].x, address + i * step, has(i));
      ptx::ld_global_u32_if(raw[i].y, address + i * step + 4, has(i));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!has(i)) continue;
      const char* const at = address + i * step;
      const uint32_t first = ptx::ld_global_u16(at), middle = ptx::ld_global_u32(at + 2),
                     last = ptx::ld_global_u16(at + 6);
      raw[i].x = first | middle << 16;
      raw[i].y = middle >> 16 | last << 16;
    }
  }
}

__device__ __forceinline__ void store_half_words(char* address, uint32_t low, uint32_t high,
                                                 int bytes) {
  if (bytes >= 8) {
    ptx::st_global_v2(address, make_uint2(low, high));
  } else if (bytes == 4) {
    ptx::st_global_u32(address, low);
    ptx::st_global_u32(address + 4, high);
  } else {
    ptx::st_global_u16(address, low);
    ptx::st_global_u32(address + 2, low >> 16 | high << 16);
    ptx::st_global_u16(address + 6, high >> 16);
  }
}

// 16-bit elements, two in a word, to f32; and back with one rounding.
template <class T>
__device__ __forceinline__ void unpack_halves(const uint32_t (&words)[T::kPerVector / 2],
                                              float (&f)[T::kPerVector], OperandType type) {
  if (type == OperandType::kOther16) {
#pragma unroll
    for (int k = 0; k < T::kPerVector / 2; ++k) Halves<T>::Other::unpack_word(words[k], f + 2 * k);
  } else {
#pragma unroll
    for (int k = 0; k < T::kPerVector / 2; ++k) Halves<T>::First::unpack_word(words[k], f + 2 * k);
  }
}
template <class T>
__device__ __forceinline__ void pack_halves(uint32_t (&words)[T::kPerVector / 2],
                                            const float (&f)[T::kPerVector], OperandType type) {
  if (type == OperandType::kOther16) {
#pragma unroll
    for (int k = 0; k < T::kPerVector / 2; ++k)
      words[k] = Halves<T>::Other::pack_word(f[2 * k], f[2 * k + 1]);
  } else {
#pragma unroll
    for (int k = 0; k < T::kPerVector / 2; ++k)
      words[k] = Halves<T>::First::pack_word(f[2 * k], f[2 * k + 1]);
  }
}

// A row of any dtype at any address: Access::kAny. Its vectors have as many elements as those of x,
// which has T's dtype. Byte is char or const char.
template <class T, class Byte>
struct AnyRow {
  static constexpr int kPerVector = T::kPerVector;

  // `least`: the widest access that all rows of the tensor allow. If it is 2, most rows allow more,
  // so the row's own address decides.
  __device__ __forceinline__ AnyRow(Byte* address, int least, OperandType row_type)
      : data(address), bytes(least > 2 ? least : access_bytes(address)), type(row_type) {}

  __device__ __forceinline__ bool is_f32() const {
    return type == (T::kBytes == 2 ? OperandType::kF32 : OperandType::kElement);
  }
  __device__ __forceinline__ Byte* at(int64_t vector) const {
    return data + vector * (is_f32() ? kPerVector * 4 : kPerVector * 2);
  }

  Byte* const data;
  const int bytes;  // of the widest access
  const OperandType type;
};

// Vectors of such a row, as loaded.
template <class T, int kCount>
struct AnyVectors {
  // Loads vector `first` and every `stride`-th after it, if has(i).
  template <class Byte, typename Has>
  __device__ __forceinline__ void load(const AnyRow<T, Byte>& row, int64_t first, int64_t stride,
                                       Has has) {
    const char* const address = row.at(first);
    const int64_t step = row.at(stride) - row.data;
    if (T::kBytes == 4 && !row.is_f32()) return load_half_words(low, address, step, row.bytes, has);
    load_words(low, address, step, row.bytes, has);
    if constexpr (T::kBytes == 2)
      load_words(high, address + kVectorBytes, step, row.bytes,
                 [&](int i) { return row.is_f32() && has(i); });
  }

  // `row`: the row from which they were loaded.
  template <class Byte>
  __device__ __forceinline__ void take(float (&f)[T::kPerVector], int i,
                                       const AnyRow<T, Byte>& row) const {
    if (!row.is_f32()) {
      if constexpr (T::kBytes == 2) {
        unpack_halves<T>({low[i].x, low[i].y, low[i].z, low[i].w}, f, row.type);
      } else {
        unpack_halves<T>({low[i].x, low[i].y}, f, row.type);
      }
      return;
    }
    f[0] = __uint_as_float(low[i].x), f[1] = __uint_as_float(low[i].y);
    f[2] = __uint_as_float(low[i].z), f[3] = __uint_as_float(low[i].w);
    if constexpr (T::kBytes == 2) {
      f[4] = __uint_as_float(high[i].x), f[5] = __uint_as_float(high[i].y);
      f[6] = __uint_as_float(high[i].z), f[7] = __uint_as_float(high[i].w);
    }
  }

  uint4 low[kCount], high[T::kBytes == 2 ? kCount : 1];
};

// A vector as f32.
template <class T, class Byte>
__device__ __forceinline__ void load_values(float (&f)[T::kPerVector], const AnyRow<T, Byte>& row,
                                            int64_t vector) {
  AnyVectors<T, 1> loaded;
  loaded.load(row, vector, 0, [](int) { return true; });
  loaded.take(f, 0, row);
}

// The first `count` values of a vector, one at a time. The others are zero.
template <class T, class Byte>
__device__ __forceinline__ void load_short_values(float (&f)[T::kPerVector],
                                                  const AnyRow<T, Byte>& row, int64_t vector,
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

template <class T>
__device__ __forceinline__ void store_values(const float (&f)[T::kPerVector],
                                             const AnyRow<T, char>& row, int64_t vector) {
  char* const address = row.at(vector);
  const auto four = [&](int i) {
    return make_uint4(__float_as_uint(f[i]), __float_as_uint(f[i + 1]), __float_as_uint(f[i + 2]),
                      __float_as_uint(f[i + 3]));
  };
  uint4 low;
  if (row.is_f32()) {
    low = four(0);
    if constexpr (T::kBytes == 2) store_whole(address + kVectorBytes, four(4), row.bytes);
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

template <class T>
__device__ __forceinline__ void store_short_values(const float (&f)[T::kPerVector],
                                                   const AnyRow<T, char>& row, int64_t vector,
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

template <Part kPart, class T, class Byte>
__device__ __forceinline__ void load_part(float (&f)[T::kPerVector], const AnyRow<T, Byte>& row,
                                          int64_t vector, int count) {
  if (kPart == Part::kCounted && count >= T::kPerVector) {
    load_values<T>(f, row, vector);
  } else {
    load_short_values<T>(f, row, vector, count);
  }
}

template <Part kPart, class T>
__device__ __forceinline__ void store_part(const float (&f)[T::kPerVector],
                                           const AnyRow<T, char>& row, int64_t vector, int count) {
  if (kPart == Part::kCounted && count >= T::kPerVector) {
    store_values<T>(f, row, vector);
  } else {
    store_short_values<T>(f, row, vector, count);
  }
}

// By words: for whole structs the compiler would use an array in local memory.
__device__ __forceinline__ uint4 selected(bool first, const uint4& a, const uint4& b) {
  return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

// Which vectors of the row a thread has, and how many of their elements count.
template <Access kAccess, class T, class Tile>
struct Reach;

// Aligned rows. The host picks the smallest tile that holds a row, so only a thread's last vector
// can be missing. Threads of rows that do not exist load another row and store nothing.
template <class T, class Tile>
struct Reach<Access::kVector, T, Tile> {
  static constexpr Access kAccess = Access::kVector;
  static constexpr bool kEvery = false;
  __device__ __forceinline__ Reach(const NormParams& p, const Place<Tile>& place, bool is_live)
      : live(is_live), last(place.vector(Tile::kVectors - 1) < p.vectors) {}
  __device__ __forceinline__ bool has(int v) const { return v < Tile::kVectors - 1 || last; }
  __device__ __forceinline__ bool whole(int v) const { return has(v); }
  __device__ __forceinline__ bool stores(int v) const { return live && has(v); }
  __device__ __forceinline__ int count(int v) const { return has(v) ? T::kPerVector : 0; }

  const bool live;  // the row exists
  const bool last;  // the thread's last vector is in the row
};

// Aligned rows in kernels for every length up to their tile: any vector may be missing.
template <class T, class Tile>
struct EveryReach {
  static constexpr Access kAccess = Access::kVector;
  static constexpr bool kEvery = true;
  __device__ __forceinline__ EveryReach(const NormParams& p, const Place<Tile>& place, bool is_live)
      : live(is_live), left(p.vectors - place.first) {}
  __device__ __forceinline__ bool has(int v) const { return Tile::offset(v) < left; }
  __device__ __forceinline__ bool whole(int v) const { return has(v); }
  __device__ __forceinline__ bool stores(int v) const { return live && has(v); }
  __device__ __forceinline__ int count(int v) const { return has(v) ? T::kPerVector : 0; }

  const bool live;  // the row exists
  const int left;   // vectors from this thread's first one to the row's end
};

// Any address: a vector is complete, partial, or missing.
template <class T, class Tile>
struct Reach<Access::kAny, T, Tile> {
  static constexpr Access kAccess = Access::kAny;
  static constexpr bool kEvery = true;
  static constexpr int kStep = Tile::kStride * T::kPerVector;  // a power of two

  __device__ __forceinline__ Reach(const NormParams& p, const Place<Tile>& place, bool is_live)
      : live(is_live), left(live ? static_cast<int>(p.n) - place.first * T::kPerVector : 0) {}
  __device__ __forceinline__ int count(int v) const { return left - v * kStep; }
  __device__ __forceinline__ bool has(int v) const { return count(v) > 0; }
  __device__ __forceinline__ bool stores(int v) const { return has(v); }
  __device__ __forceinline__ bool whole(int v) const { return count(v) >= T::kPerVector; }

  // The row's last vector, if this thread has it and it is partial.
  __device__ __forceinline__ bool has_short() const {
    return left > 0 && static_cast<uint32_t>(left - 1) % kStep < T::kPerVector &&
           last_count() < T::kPerVector;
  }
  __device__ __forceinline__ int last_register() const {
    return static_cast<int>(static_cast<uint32_t>(left - 1) / kStep);
  }
  __device__ __forceinline__ int last_count() const {
    return static_cast<int>(static_cast<uint32_t>(left - 1) % T::kPerVector) + 1;
  }

  const bool live;
  const int left;  // elements from this thread's first one to the row's end
};

// One of a thread's vectors, by its number.
template <int kVectors, int kPerVector>
__device__ __forceinline__ void pick_vector(float (&f)[kPerVector],
                                            const float (&values)[kVectors][kPerVector],
                                            int number) {
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) {
    f[i] = values[0][i];
#pragma unroll
    for (int v = 1; v < kVectors; ++v) f[i] = v == number ? values[v][i] : f[i];
  }
}

template <int kVectors, int kPerVector>
__device__ __forceinline__ void put_vector(float (&values)[kVectors][kPerVector], int number,
                                           const float (&f)[kPerVector]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) values[v][i] = v == number ? f[i] : values[v][i];
  }
}

// Zeroes what is past the row's end.
template <int kCount>
__device__ __forceinline__ void clear_from(float (&z)[kCount], int count) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) z[i] = i < count ? z[i] : 0.0f;
}

// A thread's share of a row, stored to any address. A loop over vectors, because the code for one
// is long.
template <class T, class Tile, class Reach>
__device__ __forceinline__ void store_row(const float (&values)[Tile::kVectors][T::kPerVector],
                                          const AnyRow<T, char>& row, const Place<Tile>& place,
                                          const Reach& reach) {
#pragma unroll 1
  for (int v = 0; v < Tile::kVectors && reach.has(v); ++v) {
    float f[T::kPerVector];
    pick_vector(f, values, v);
    store_part<Part::kCounted, T>(f, row, place.vector(v), reach.count(v));
  }
}

}  // namespace fastnorm::cuda
