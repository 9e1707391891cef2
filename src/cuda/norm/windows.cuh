// Vectors of a row at any address, straight from memory and to it: of rows that the shared memory
// of one block does not hold.
//
// A vector is in two windows, as the 16 bytes at multiples of 16 are called here: both are read,
// the second again by the next lane, and shifted. A window is written by the thread to whose vector
// its last bytes belong; the first ones come from the lane before it. Windows that are not all the
// row's go by elements: on the way in, the row's first vector and its last two at most.
#pragma once

#include "cuda/common/staged.cuh"

namespace fastnorm::cuda {

// A row of an input on its way into registers.
template <class T, class Tile>
struct WindowInput {
  static constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector;

  __device__ __forceinline__ WindowInput(const char* row, const NormParams& p,
                                         const Place<Tile>& place)
      : shift(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row)) % kVectorBytes),
        bytes(row_elements<T>(p) * T::kBytes) {
    const char* const window = row + (place.first * kVectorBytes - static_cast<int>(shift));
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const bool wanted = within(place.vector(v));
      const char* const address = window + v * (Tile::kStride * kVectorBytes);
      words[v] = next[v] = make_uint4(0, 0, 0, 0);
      ptx::ld_global_v4_if(words[v], address, wanted);
      ptx::ld_global_v4_if(next[v], address + kVectorBytes, wanted && shift != 0);
    }
    const auto thread = static_cast<int>(threadIdx.x);
    const int vector = edge_vector(thread / kPerVector, p.vectors);
    const int element = vector * kPerVector + thread % kPerVector;
    edge = 0;
    load_element_if<T::kBytes>(edge, row + element * T::kBytes,
                               thread < kEdges * kPerVector && vector >= 0 &&
                                   element * T::kBytes < static_cast<int>(bytes));
  }

  // Vectors that go by elements, by number.
  static constexpr int kEdges = kStagedEdges;
  static __device__ __forceinline__ int edge_vector(int number, int vectors) {
    return number == 0 ? 0 : vectors - number;
  }

  // True where the windows of a vector are the row's.
  __device__ __forceinline__ bool within(int vector) const {
    const int begin = vector * kVectorBytes - static_cast<int>(shift);
    return begin >= 0 && begin + (shift == 0 ? 1 : 2) * kVectorBytes <= static_cast<int>(bytes);
  }

  // What came by elements, to `edges` in shared memory; all of it is there after a barrier.
  __device__ __forceinline__ void complete(char* edges) const {
    if (threadIdx.x < kEdges * kPerVector)
      put_shared<T::kBytes>(edges + threadIdx.x * T::kBytes, edge);
  }

  __device__ __forceinline__ void take(uint4 (&raw)[kVectors], const char* edges,
                                       const Place<Tile>& place, int vectors) const {
    const uint32_t bits = shift % 4 * 8;
    by_word(shift / 4, [&](auto first) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const uint4 low = words[v], high = next[v];
        raw[v] = shifted_words<T::kBytes, decltype(first)::value>(
            bits, [&](int k) { return k < 4 ? word_of(low, k) : word_of(high, k - 4); });
      }
    });
    // A thread has the first vector in its first register, and the last two in its last or, the one
    // before, in the register before.
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (v != 0 && v < kVectors - 2) continue;
      const int vector = place.vector(v);
      if (vector >= vectors || within(vector)) continue;
      raw[v] = reinterpret_cast<const uint4*>(edges)[vector == 0 ? 0 : vectors - vector];
    }
  }

  const uint32_t shift, bytes;
  uint4 words[kVectors], next[kVectors];
  uint32_t edge;
};

// A vector of an output to `row`, by all lanes of a warp, which have neighbouring vectors.
template <class T>
__device__ __forceinline__ void store_window(char* row, const uint4& words, int vector,
                                             const NormParams& p) {
  constexpr int kPerVector = T::kPerVector;
  char* const address = row + int64_t{vector} * kVectorBytes;
  const uint32_t shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row)) % kVectorBytes;
  const int count = static_cast<int>(row_elements<T>(p)) - vector * kPerVector;
  int first = 0, end = count < kPerVector ? count : kPerVector;  // what goes by elements
  if (shift == 0) {
    if (count >= kPerVector) {
      ptx::st_global_v4(address, words);
      return;
    }
  } else {
    const auto before = [&](uint32_t word) {
      return __float_as_uint(__shfl_up_sync(~0u, __uint_as_float(word), 1));
    };
    const uint4 low =
        make_uint4(before(words.x), before(words.y), before(words.z), before(words.w));
    const uint32_t own_bytes = kVectorBytes - shift;  // of this vector's in its first window
    uint4 window;
    by_word(own_bytes / 4, [&](auto word) {
      window = shifted_words<T::kBytes, decltype(word)::value>(own_bytes % 4 * 8, [&](int k) {
        return k < 4 ? word_of(low, k) : word_of(words, k - 4);
      });
    });
    const int own = static_cast<int>(own_bytes) / T::kBytes;
    const auto lane = threadIdx.x % 32;
    if (lane > 0 && count >= own) {
      ptx::st_global_v4(address - shift, window);
      first = own;
    }
    if (lane < 31 && count - kPerVector >= own) end = own;  // the next lane writes the rest
  }
  if (first >= end) return;
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) {
    if (i >= first && i < end) {
      store_element<T::kBytes>(address + i * T::kBytes,
                               word_of(words, i / T::kPerWord) >> i % T::kPerWord * 16);
    }
  }
}

}  // namespace fastnorm::cuda
