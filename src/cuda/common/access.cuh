// Loads and stores of the 16-byte vectors of a row.
//
// Vector j of a row is elements j * kPerVector and on, wherever the row begins. So sums do not
// depend on alignment. An aligned vector is one access. Otherwise a vector is read by words or
// elements, as its address allows, and nothing past the row's end is accessed. The general kernels
// check each row's address. Unaligned rows of the norm go through shared memory: norm/staged.cuh.
#pragma once

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

// Loads one vector if `wanted`, without a branch. Otherwise raw keeps its value.
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
// `bytes` is the size of an access, at least kLeast. No load waits for another, except with
// accesses of 2 bytes.
template <int kLeast = 2, int kCount, typename Has>
__device__ __forceinline__ void load_words(uint4 (&raw)[kCount], const char* address, int64_t step,
                                           int bytes, Has has) {
  fill_values(raw, make_uint4(0, 0, 0, 0));
  const auto load = [&](auto width) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      load_words_if<decltype(width)::kValue>(raw[i], address + i * step, has(i));
  };
  if (bytes == 16) {
    load(AccessBytes<16>{});
  } else if (bytes == 8) {
    load(AccessBytes<8>{});
  } else if (kLeast == 4 || bytes == 4) {
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

// Loads vectors of 8 bytes as load_words() does: 16-bit elements of an operand whose x is f32. They
// fill x and y.
template <int kCount, typename Has>
__device__ __forceinline__ void load_half_words(uint4 (&raw)[kCount], const char* address,
                                                int64_t step, int bytes, Has has) {
  fill_values(raw, make_uint4(0, 0, 0, 0));
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

// By words: for whole structs the compiler would use an array in local memory.
__device__ __forceinline__ uint4 selected(bool first, const uint4& a, const uint4& b) {
  return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

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

}  // namespace fastnorm::cuda
