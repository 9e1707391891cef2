// Which row, and which of its vectors, a thread has.
#pragma once

#include "core/norm/key.h"
#include "cuda/common/tile.cuh"
#include "cuda/norm/params.h"

namespace fastnorm::cuda {

// kMost: how many indices a row may have. With two, the products of the third disappear. kUniform:
// all threads of a block have the same row, and its digits tell whether it has several. Otherwise
// `bits` tells, without waiting for the digits.
template <int kMost = 3, bool kUniform = true>
__device__ __forceinline__ RowIndex row_index(const NormParams& p, uint32_t row, uint32_t bits) {
  RowIndex index = {(bits & kSingleIndex) != 0, {row, 0, 0}};
  if (!kUniform && index.single) return index;
  if (!index.single) {
    const uint32_t upper = quotient(row, p.outer[0]);
    const uint32_t top = kMost > 2 && (bits & kThreeIndices) != 0 ? quotient(upper, p.outer[1]) : 0;
    index.digit[0] = row - upper * p.outer[0].value;
    index.digit[1] = upper - top * p.outer[1].value;
    index.digit[2] = top;
  }
  if constexpr (kUniform) index.single = (index.digit[1] | index.digit[2]) == 0;
  return index;
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

}  // namespace fastnorm::cuda
