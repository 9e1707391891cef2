// Sink: y and the statistics.
#pragma once

#include "cuda/norm/source.cuh"

namespace fastnorm::cuda {

template <Sink kSink, Access kAccess, class T>
struct RowSink;

template <class T>
struct RowSink<Sink::kStore, Access::kVector, T> {
  __device__ __forceinline__ RowSink(const NormParams& p, const RowIndex& index)
      : y(row_address(p.y, p.y_upper, index)) {}
  __device__ __forceinline__ void put(const float (&z)[T::kPerVector], int64_t vector,
                                      int count) const {
    if (count > 0) ptx::st_global_v4(y + vector * kVectorBytes, T::pack(z));
  }
  char* const y;
};

template <class T>
struct RowSink<Sink::kStore, Access::kAny, T> {
  __device__ __forceinline__ RowSink(const NormParams& p, const RowIndex& index)
      : y(row_address(p.y, p.y_upper, index), p.y_align, static_cast<OperandType>(p.y_type)) {}
  __device__ __forceinline__ void put(const float (&z)[T::kPerVector], int64_t vector,
                                      int count) const {
    store_part<Part::kCounted, T>(z, y, vector, count);
  }
  const AnyRow<T, char> y;
};

// Unaligned rows: put_staged() and store_results(), or store_window() for rows of a cluster.
template <class T>
struct RowSink<Sink::kStore, Access::kUnaligned, T> {
  __device__ __forceinline__ RowSink(const NormParams& p, const RowIndex& index)
      : y(row_address(p.y, p.y_upper, index)) {}
  char* const y;
};

// y, if wanted. quant.cuh makes the codes.
template <Access kAccess, class T>
struct RowSink<Sink::kQuant, kAccess, T> : RowSink<Sink::kStore, kAccess, T> {
  using Store = RowSink<Sink::kStore, kAccess, T>;
  __device__ __forceinline__ RowSink(const NormParams& p, const RowIndex& index)
      : Store(p, index), present(p.y.data != nullptr) {}
  __device__ __forceinline__ void put(const float (&z)[T::kPerVector], int64_t vector,
                                      int count) const {
    if (present) Store::put(z, vector, count);
  }
  const bool present;
};

// y of an unaligned row: vectors go to shared memory, and from there to y.
template <class Slots, class Tile>
__device__ __forceinline__ void put_staged(const uint4& y, int v, const Place<Tile>& place) {
  reinterpret_cast<uint4*>(StagedRow<Slots, Tile>().results())[place.vector(v)] = y;
}

template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void store_results(const NormParams& p, const RowIndex& index,
                                              const Place<Tile>& place, const Reach& reach) {
  using T = typename Slots::T;
  sync_row<Tile>();
  store_staged<T::kBytes, Tile::kVectors, Slots::kV.has(Variant::kPinsAddress)>(
      row_address(p.y, p.y_upper, index), row_elements<T>(p) * T::kBytes,
      StagedRow<Slots, Tile>().results(), place, reach.live);
}

// The statistics, by the row's first thread.
__device__ __forceinline__ void store_statistics(const NormParams& p, const RowIndex& index,
                                                 float mean, float rstd) {
  if (p.rstd.data != nullptr)
    *reinterpret_cast<float*>(row_address(p.rstd, p.rstd_upper, index)) = rstd;
  if (p.mean.data != nullptr)
    *reinterpret_cast<float*>(row_address(p.mean, p.mean_upper, index)) = mean;
}

}  // namespace fastnorm::cuda
