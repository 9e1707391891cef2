// Unaligned rows that one block holds (Access::kUnaligned), through shared memory.
//
// Memory is read and written by pieces: the 16 bytes at a multiple of 16. Where a piece is the
// row's in part, its elements go one by one, one a thread. The row lies in shared memory as far
// behind a multiple of 16 as in memory, and threads take their vectors from there. Results lie
// there vector by vector, and threads take pieces from there. Either way 16 bytes at any place are
// taken by two aligned accesses and a shift, which is the same for a row.
#pragma once

#include <type_traits>

#include "cuda/common/access.cuh"
#include "cuda/common/ptx/shared.cuh"

namespace fastnorm::cuda {

// Between what a row's threads write to shared memory and what they read there.
template <class Tile>
__device__ __forceinline__ void sync_row() {
  if constexpr (Tile::kOneWarp) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// A row's own part of the block's shared memory.
template <class Slots, class Tile>
struct StagedRow {
  static constexpr fastnorm::Tile kTile = {Tile::kThreads, Tile::kVectors, Tile::kBlocks};
  static constexpr int kImageBytes = staged_image_bytes(kTile),
                       kBytes = staged_row_bytes(Slots::kSource, kTile);

  __device__ __forceinline__ StagedRow()
      : data(ptx::launch_shared() + (Tile::kRows > 1 ? threadIdx.x / Tile::kThreads * kBytes : 0)) {
  }

  // x, and when all threads have taken theirs, results.
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

// Elements that a thread has of so many that a row's threads share out.
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

// What of a row of elements of kBytes is whole pieces, and what are elements before and behind
// them.
template <int kBytes, class Tile, class Byte>
struct Pieces {
  static constexpr uint32_t kSlots = kVectorBytes / kBytes;    // on either side
  static constexpr int kEdges = shared_out<Tile>(2 * kSlots);  // elements of a thread

  __device__ __forceinline__ Pieces(Byte* address, uint32_t row_bytes)
      : row(address),
        shift(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) % kVectorBytes),
        bytes(row_bytes),
        end((shift + bytes) / kVectorBytes) {
    const uint32_t first = shift == 0 ? 0 : kVectorBytes - shift;
    const bool within = bytes < first;  // of a piece
    before = within ? bytes : first;
    behind = within ? 0 : (shift + bytes) % kVectorBytes;
  }

  // The first piece that may be whole; that of register v.
  __device__ __forceinline__ uint32_t first() const { return shift == 0 ? 0 : 1; }
  __device__ __forceinline__ uint32_t piece(const Place<Tile>& place, int v) const {
    return first() + static_cast<uint32_t>(place.vector(v));
  }
  __device__ __forceinline__ Byte* at(const Place<Tile>& place) const {
    return row - shift + piece(place, 0) * kVectorBytes;
  }

  // Calls fn(i, offset, wanted) for the elements before and behind the pieces that may be this
  // thread's.
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

// Word i of those that begin at word kFirst of two vectors, or `bits` later.
template <int kBytes, int kFirst, typename Word>
__device__ __forceinline__ uint4 shifted_words(uint32_t bits, Word word) {
  const auto at = [&](int i) {
    if constexpr (kBytes == 4) return word(kFirst + i);
    return __funnelshift_r(word(kFirst + i), word(kFirst + i + 1), bits);
  };
  return make_uint4(at(0), at(1), at(2), at(3));
}

// Calls fn(word) with a word's number, 0 to 3, as a constant.
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

// kCount times 16 bytes from shared memory, `shift` bytes (whole elements of kBytes) behind
// `address`, a multiple of 16, and every stride of the tile. Where a warp has one row, by a branch
// on the words of the shift; else half of it by address and half by selection.
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

// A row of an input on its way into its image.
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

  // What came by elements, and zeros up to the next vector.
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

  // This thread's vectors, when all threads have completed theirs.
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

// In place of a row that there is not.
struct NotStaged {
  template <class... Arguments>
  __device__ __forceinline__ explicit NotStaged(const Arguments&...) {}
};

// A row of elements of kBytes that lies in shared memory from `results` on, a multiple of 16, to
// memory. A thread has at most kCount pieces of it.
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

// The elements of a weight or bias that a row's short vector has, on their way into shared memory;
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

// Rows of any length up to the tile: a vector is there, the row's last one in part, or not.
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
  // The row's last vector, where it is this thread's and not whole.
  __device__ __forceinline__ bool has_short() const {
    return left > 0 && (left - 1) % Tile::kStride == 0 && last_elements != 0;
  }
  __device__ __forceinline__ int last_register() const { return (left - 1) / Tile::kStride; }

  const bool live;          // the row exists
  const int left;           // vectors from this thread's first one to the row's end
  const int last_elements;  // of the row's last vector; 0: it is whole
};

}  // namespace fastnorm::cuda
