// Rows in any of the three dtypes at any address, for kernels that ask for the dtype at run time.
#pragma once

#include "cuda/common/access.cuh"

namespace fastnorm::cuda {

// kCount elements of a row, as they were loaded. For f32 they are as many words, else half of that.
template <int kCount>
struct AnyWords {
  uint32_t word[kCount];
};

// A row of any dtype at any address. `scalar`: it is one element, which every column reads.
struct AnyDtypeRow {
  __device__ __forceinline__ AnyDtypeRow(char* address, Dtype of_dtype, bool is_scalar = false)
      : data(address), dtype(of_dtype), bytes(access_bytes(address)), scalar(is_scalar) {}

  __device__ __forceinline__ int element_bytes() const { return dtype == Dtype::kF32 ? 4 : 2; }
  __device__ __forceinline__ char* at(int64_t element) const {
    return data + element * element_bytes();
  }

  char* const data;
  const Dtype dtype;
  const int bytes;  // of the widest access
  const bool scalar;
};

// kWords words from an address that accesses of `bytes` reach. kElementBytes: f32 is never at an
// address that is no multiple of 4.
template <int kElementBytes, int kWords>
__device__ __forceinline__ void load_any_words(uint32_t* word, const char* address, int bytes) {
  if (kWords % 4 == 0 && bytes == 16) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const uint4 v = ptx::ld_global_v4(address + i * 4);
      word[i] = v.x, word[i + 1] = v.y, word[i + 2] = v.z, word[i + 3] = v.w;
    }
  } else if (bytes >= 8) {
#pragma unroll
    for (int i = 0; i < kWords; i += 2) {
      const uint2 v = ptx::ld_global_v2(address + i * 4);
      word[i] = v.x, word[i + 1] = v.y;
    }
  } else if (kElementBytes == 4 || bytes == 4) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = ptx::ld_global_u32(address + i * 4);
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      word[i] = ptx::ld_global_u16(address + i * 4) | ptx::ld_global_u16(address + i * 4 + 2) << 16;
    }
  }
}

template <int kElementBytes, int kWords>
__device__ __forceinline__ void store_any_words(const uint32_t* word, char* address, int bytes) {
  if (kWords % 4 == 0 && bytes == 16) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      ptx::st_global_v4(address + i * 4,
                        make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]));
  } else if (bytes >= 8) {
#pragma unroll
    for (int i = 0; i < kWords; i += 2)
      ptx::st_global_v2(address + i * 4, make_uint2(word[i], word[i + 1]));
  } else if (kElementBytes == 4 || bytes == 4) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) ptx::st_global_u32(address + i * 4, word[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      ptx::st_global_u16(address + i * 4, word[i] & 0xffff);
      ptx::st_global_u16(address + i * 4 + 2, word[i] >> 16);
    }
  }
}

__device__ __forceinline__ uint32_t load_any_bits(const char* address, Dtype dtype) {
  return dtype == Dtype::kF32 ? ptx::ld_global_u32(address) : ptx::ld_global_u16(address);
}

// The kCount elements from `element` on, of which `count` are the row's; the others read as zero.
template <int kCount>
__device__ __forceinline__ void load_any(AnyWords<kCount>& v, const AnyDtypeRow& row,
                                         int64_t element, int count) {
#pragma unroll
  for (uint32_t& word : v.word) word = 0;
  if (count >= kCount && !row.scalar) {
    const char* const address = row.at(element);
    if (row.dtype == Dtype::kF32) {
      load_any_words<4, kCount>(v.word, address, row.bytes);
    } else {
      load_any_words<2, kCount / 2>(v.word, address, row.bytes);
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const uint32_t bits = load_any_bits(row.at(row.scalar ? 0 : element + i), row.dtype);
    const int number = row.dtype == Dtype::kF32 ? i : i / 2;
    const uint32_t part = row.dtype == Dtype::kF32 ? bits : bits << (i % 2 * 16);
#pragma unroll
    for (int k = 0; k < kCount; ++k) v.word[k] |= k == number ? part : 0;
  }
}

template <class T, int kCount>
__device__ __forceinline__ void unpack_words(float (&f)[kCount], const AnyWords<kCount>& v) {
#pragma unroll
  for (int i = 0; i < kCount; i += T::kPerWord) T::unpack_word(v.word[i / T::kPerWord], f + i);
}

template <int kCount>
__device__ __forceinline__ void unpack_any(float (&f)[kCount], const AnyWords<kCount>& v,
                                           Dtype dtype) {
  if (dtype == Dtype::kF32) {
    unpack_words<Element<Dtype::kF32>>(f, v);
  } else if (dtype == Dtype::kBF16) {
    unpack_words<Element<Dtype::kBF16>>(f, v);
  } else {
    unpack_words<Element<Dtype::kF16>>(f, v);
  }
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

__device__ __forceinline__ float load_any_element(const char* address, Dtype dtype) {
  if (dtype == Dtype::kF32) return ptx::ld_global_f32(address);
  const uint32_t bits = ptx::ld_global_u16(address);
  return dtype == Dtype::kBF16 ? __uint_as_float(bits << 16) : ptx::cvt_from_f16(bits);
}

template <int kCount>
__device__ __forceinline__ void store_any(const float (&f)[kCount], const AnyDtypeRow& row,
                                          int64_t element, int count) {
  if (count >= kCount) {
    char* const address = row.at(element);
    uint32_t word[kCount];
    if (row.dtype == Dtype::kF32) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) word[i] = __float_as_uint(f[i]);
      store_any_words<4, kCount>(word, address, row.bytes);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        word[i / 2] = row.dtype == Dtype::kBF16 ? Element<Dtype::kBF16>::pack_word(f[i], f[i + 1])
                                                : Element<Dtype::kF16>::pack_word(f[i], f[i + 1]);
      }
      store_any_words<2, kCount / 2>(word, address, row.bytes);
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    float value = f[0];
#pragma unroll
    for (int k = 1; k < kCount; ++k) value = k == i ? f[k] : value;
    store_any_element(row.at(element + i), value, row.dtype);
  }
}

template <int kCount>
__device__ __forceinline__ void multiply(float (&v)[kCount], const float (&factor)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = __fmul_rn(v[i], factor[i]);
}

template <int kCount>
__device__ __forceinline__ void load_values(float (&v)[kCount], const AnyDtypeRow& row,
                                            int64_t element, int count) {
  AnyWords<kCount> words;
  load_any(words, row, element, count);
  unpack_any(v, words, row.dtype);
}

}  // namespace fastnorm::cuda
