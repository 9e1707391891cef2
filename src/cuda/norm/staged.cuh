// Unaligned rows that one block holds (Access::kUnaligned), through shared memory.
//
// Memory is accessed by pieces: 16 bytes at a multiple of 16. If only a part of a piece belongs to
// the row, its elements are accessed one at a time, one per thread. In shared memory the row has
// the same offset from a multiple of 16 as in memory, and threads take their vectors from there.
// Results are in shared memory vector by vector, and threads take pieces from there. In both
// directions, 16 bytes at any offset take two aligned accesses and a shift. The shift is the same
// for the whole row.
#pragma once

#include <type_traits>

#include "cuda/common/access.cuh"
#include "cuda/common/ptx/shared.cuh"
#include "cuda/norm/reach.cuh"

namespace fastnorm::cuda {

// Separates what a row's threads write to shared memory from what they read there.
template <class Tile>
__device__ __forceinline__ void sync_row() {
  if constexpr (Tile::kOneWarp) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// The part of the block's shared memory that belongs to one row.
template <class Slots, class Tile>
struct StagedRow {
  static constexpr fastnorm::Tile kTile = {Tile::kThreads, Tile::kVectors, Tile::kBlocks};
  static constexpr int kImageBytes = staged_image_bytes(kTile),
                       kBytes = staged_row_bytes(Slots::kSource, kTile);

  __device__ __forceinline__ StagedRow()
      : data(ptx::launch_shared() + (Tile::kRows > 1 ? threadIdx.x / Tile::kThreads * kBytes : 0)) {
  }

  // Holds x, and after all threads have taken their vectors, results.
  __device__ __forceinline__ char* x() const { return data; }
  __device__ __forceinline__ char* results() const { return data; }
  __device__ __forceinline__ char* residual() const { return data + kImageBytes; }
  __device__ __forceinline__ char* sum() const { return data + 2 * kImageBytes; }
  __device__ __forceinline__ char* weight_tail() const {
    return data + kBytes - 2 * kStagedTailBytes;
  }
  __device__ __forceinline__ char* bias_tail() const { return data + kBytes - kStagedTailBytes; }

  char* const data;
};

// Elements of each thread if the threads of a row share `count` elements.
template <class Tile>
constexpr int shared_out(int count) {
  return (count + Tile::kThreads - 1) / Tile::kThreads;
}

template <int kBytes>
using ElementWord =
    std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>;

template <int kBytes>
__device__ __forceinline__ void load_element_if(uint32_t& bits, const char* address, bool wanted) {
  if constexpr (kBytes == 4) {
    ptx::ld_global_u32_if(bits, address, wanted);
  } else {
    ptx::ld_global_u16_if(bits, address, wanted);
  }
}

template <int kBytes>
__device__ __forceinline__ void put_shared(char* address, uint32_t bits) {
  *reinterpret_cast<ElementWord<kBytes>*>(address) = static_cast<ElementWord<kBytes>>(bits);
}

// Elements of a row.
template <class T>
__device__ __forceinline__ uint32_t missing_elements(const NormParams& p) {
  return p.bits_again / kMissingElement % T::kPerVector;
}
template <class T>
__device__ __forceinline__ uint32_t row_elements(const NormParams& p) {
  return static_cast<uint32_t>(p.vectors) * T::kPerVector - missing_elements<T>(p);
}

// Which bytes of a row are complete pieces, and which are elements before and behind them. kBytes
// is the size of an element.
template <int kBytes, class Tile, class Byte>
struct Pieces {
  static constexpr uint32_t kSlots = kVectorBytes / kBytes;    // on each side
  static constexpr int kEdges = shared_out<Tile>(2 * kSlots);  // elements of a thread

  __device__ __forceinline__ Pieces(Byte* address, uint32_t row_bytes)
      : row(address),
        shift(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) % kVectorBytes),
        bytes(row_bytes),
        end((shift + bytes) / kVectorBytes) {
    const uint32_t first = shift == 0 ? 0 : kVectorBytes - shift;
    const bool within = bytes < first;  // the row is inside one piece
    before = within ? bytes : first;
    behind = within ? 0 : (shift + bytes) % kVectorBytes;
  }

  // The first piece that may be complete; then that of register v.
  __device__ __forceinline__ uint32_t first() const { return shift == 0 ? 0 : 1; }
  __device__ __forceinline__ uint32_t piece(const Place<Tile>& place, int v) const {
    return first() + static_cast<uint32_t>(place.vector(v));
  }
  __device__ __forceinline__ Byte* at(const Place<Tile>& place) const {
    return row - shift + piece(place, 0) * kVectorBytes;
  }

  // Calls fn(i, offset, wanted) for this thread's elements before and behind the pieces.
  template <typename Fn>
  __device__ __forceinline__ void edges(const Place<Tile>& place, Fn fn) const {
#pragma unroll
    for (int i = 0; i < kEdges; ++i) {
      const auto number = static_cast<uint32_t>(place.first + i * Tile::kThreads);
      const bool ahead = number < kSlots;
      const uint32_t offset = number % kSlots * kBytes;
      const bool wanted = number < 2 * kSlots && offset < (ahead ? before : behind);
      fn(i, ahead ? offset : bytes - kBytes - offset, wanted);
    }
  }

  Byte* const row;
  const uint32_t shift, bytes, end;
  uint32_t before, behind;  // bytes
};

// Word i of the words that begin at word kFirst of two vectors, shifted by `bits`.
template <int kBytes, int kFirst, typename Word>
__device__ __forceinline__ uint4 shifted_words(uint32_t bits, Word word) {
  const auto at = [&](int i) {
    if constexpr (kBytes == 4) return word(kFirst + i);
    return __funnelshift_r(word(kFirst + i), word(kFirst + i + 1), bits);
  };
  return make_uint4(at(0), at(1), at(2), at(3));
}

// Calls fn(word) with the number of a word, 0 to 3, as a constant.
template <typename Fn>
__device__ __forceinline__ void by_word(uint32_t word, Fn fn) {
  if ((word & 2) == 0) {
    if ((word & 1) == 0) {
      fn(std::integral_constant<int, 0>());
    } else {
      fn(std::integral_constant<int, 1>());
    }
  } else if ((word & 1) == 0) {
    fn(std::integral_constant<int, 2>());
  } else {
    fn(std::integral_constant<int, 3>());
  }
}

// Loads kCount times 16 bytes from shared memory, at every stride of the tile. They begin `shift`
// bytes (complete elements of kBytes) behind `address`, a multiple of 16. If a warp has one row, a
// branch selects the words. Otherwise half of the shift is in the address, half in a selection.
template <int kBytes, class Tile, int kCount>
__device__ __forceinline__ void take_shifted(uint4 (&raw)[kCount], const char* address,
                                             uint32_t shift) {
  constexpr int kStep = Tile::kStride * kVectorBytes;
  const uint32_t bits = shift % 4 * 8;
  if constexpr (Tile::kRowsShareWarp || kCount == 1) {
    address += shift & 8;
    const bool odd = (shift & 4) != 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint2 a = ptx::ld_shared_v2(address + i * kStep),
                  b = ptx::ld_shared_v2(address + i * kStep + 8),
                  c = ptx::ld_shared_v2(address + i * kStep + 16);
      const uint32_t words[] = {odd ? a.y : a.x, odd ? b.x : a.y, odd ? b.y : b.x, odd ? c.x : b.y,
                                odd ? c.y : c.x};
      raw[i] = shifted_words<kBytes, 0>(bits, [&](int k) { return words[k]; });
    }
  } else {
    const auto take = [&](auto first) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint4 low = ptx::ld_shared_v4(address + i * kStep),
                    high = ptx::ld_shared_v4(address + i * kStep + kVectorBytes);
        raw[i] = shifted_words<kBytes, decltype(first)::value>(
            bits, [&](int k) { return k < 4 ? word_of(low, k) : word_of(high, k - 4); });
      }
    };
    by_word(shift / 4, take);
  }
}

// A row of an input on its way into its image in shared memory.
template <class T, class Tile>
struct StagedInput {
  using RowPieces = Pieces<T::kBytes, Tile, const char>;

  __device__ __forceinline__ StagedInput(const char* row, const NormParams& p, char* image,
                                         const Place<Tile>& place)
      : pieces(row, row_elements<T>(p) * T::kBytes) {
    char* const to = image + pieces.piece(place, 0) * kVectorBytes;
    const char* const from = pieces.at(place);
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v) {
      constexpr int kStep = Tile::kStride * kVectorBytes;
      ptx::copy_async_if(to + v * kStep, from + v * kStep, pieces.piece(place, v) < pieces.end);
    }
    pieces.edges(place, [&](int i, uint32_t offset, bool wanted) {
      edge[i] = 0;
      load_element_if<T::kBytes>(edge[i], row + offset, wanted);
    });
  }

  // Stores the elements, and zeros up to the next vector.
  __device__ __forceinline__ void complete(char* image, const Place<Tile>& place) const {
    char* const begin = image + pieces.shift;
    pieces.edges(place, [&](int i, uint32_t offset, bool wanted) {
      if (wanted) put_shared<T::kBytes>(begin + offset, edge[i]);
    });
    const uint32_t left = pieces.bytes % kVectorBytes;
    if (left == 0) return;
#pragma unroll
    for (int i = 0; i < shared_out<Tile>(T::kPerVector); ++i) {
      const uint32_t offset = static_cast<uint32_t>(place.first + i * Tile::kThreads) * T::kBytes;
      if (offset < kVectorBytes && offset >= left)
        put_shared<T::kBytes>(begin + pieces.bytes - left + offset, 0);
    }
  }

  // This thread's vectors, after all threads have called complete().
  template <class Reach>
  __device__ __forceinline__ void take(uint4 (&raw)[Tile::kVectors], const char* image,
                                       const Place<Tile>& place, const Reach& reach) const {
    take_shifted<T::kBytes, Tile>(raw, image + place.first * kVectorBytes, pieces.shift);
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v) {
      if (!reach.has(v)) raw[v] = make_uint4(0, 0, 0, 0);
    }
  }

  const RowPieces pieces;
  uint32_t edge[RowPieces::kEdges];
};

// Stands for a row that does not exist.
struct NotStaged {
  template <class... Arguments>
  __device__ __forceinline__ explicit NotStaged(const Arguments&...) {}
};

// Copies a row from shared memory, at `results`, a multiple of 16, to memory. Elements have kBytes.
// A thread has at most kCount pieces.
template <int kBytes, int kCount, bool kPinned, class Tile>
__device__ __forceinline__ void store_staged(char* row, uint32_t bytes, const char* results,
                                             const Place<Tile>& place, bool live) {
  const Pieces<kBytes, Tile, char> pieces(row, bytes);
  uint4 raw[kCount];
  take_shifted<kBytes, Tile>(raw, results + place.first * kVectorBytes,
                             (kVectorBytes - pieces.shift) % kVectorBytes);
  char* to = pieces.at(place);
  if constexpr (kPinned) to = ptx::in_register(to);
#pragma unroll
  for (int v = 0; v < kCount; ++v) {
    if (live && pieces.piece(place, v) < pieces.end)
      ptx::st_global_v4(to + v * (Tile::kStride * kVectorBytes), raw[v]);
  }
  pieces.edges(place, [&](int, uint32_t offset, bool wanted) {
    if (live && wanted) {
      store_element<kBytes>(row + offset,
                            *reinterpret_cast<const ElementWord<kBytes>*>(results + offset));
    }
  });
}

// The elements of weight or bias for a row's partial vector, on their way into shared memory.
// kBytes is their size.
template <class T, class Tile, int kBytes>
struct WeightTail {
  static constexpr int kPerVector = T::kPerVector, kCount = shared_out<Tile>(kPerVector);

  __device__ __forceinline__ void load(const char* weight, const NormParams& p, uint32_t absent,
                                       bool present, const Place<Tile>& place) {
    const uint32_t n = row_elements<T>(p), count = n % kPerVector;
    const char* const from = weight + (n - count) * kBytes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const auto number = static_cast<uint32_t>(place.first + i * Tile::kThreads);
      element[i] = absent;
      load_element_if<kBytes>(element[i], from + number * kBytes, present && number < count);
    }
  }
  __device__ __forceinline__ void complete(char* tail, const Place<Tile>& place) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int number = place.first + i * Tile::kThreads;
      if (number < kPerVector) put_shared<kBytes>(tail + number * kBytes, element[i]);
    }
  }

  uint32_t element[kCount];
};

__device__ __forceinline__ uint4 tail_vector(const char* tail, int number = 0) {
  return reinterpret_cast<const uint4*>(tail)[number];
}

// Rows of any length up to the tile. A vector is complete, missing, or, as the row's last one,
// partial.
template <class T, class Tile>
struct Reach<Access::kUnaligned, T, Tile> {
  static constexpr Access kAccess = Access::kUnaligned;
  static constexpr int kPerVector = T::kPerVector;

  __device__ __forceinline__ Reach(const NormParams& p, const Place<Tile>& place, bool is_live)
      : live(is_live),
        left(p.vectors - place.first),
        last_elements(static_cast<int>(row_elements<T>(p) % kPerVector)) {}
  __device__ __forceinline__ bool has(int v) const { return Tile::offset(v) < left; }
  __device__ __forceinline__ bool whole(int v) const {
    return Tile::offset(v) < left - (last_elements != 0 ? 1 : 0);
  }
  __device__ __forceinline__ bool stores(int v) const { return live && has(v); }
  __device__ __forceinline__ int count(int v) const {
    return whole(v) ? kPerVector : has(v) ? last_elements : 0;
  }
  // The row's last vector, if this thread has it and it is partial.
  __device__ __forceinline__ bool has_short() const {
    return left > 0 && (left - 1) % Tile::kStride == 0 && last_elements != 0;
  }
  __device__ __forceinline__ int last_register() const { return (left - 1) / Tile::kStride; }

  const bool live;          // the row exists
  const int left;           // vectors from this thread's first one to the row's end
  const int last_elements;  // of the row's last vector; 0: it is complete
};

}  // namespace fastnorm::cuda
