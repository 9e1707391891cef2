// Sink: 8-bit codes of one type with one static scale for the tensor. Most quantising calls ask for
// just that, so it has no branches.
#pragma once

#include "cuda/norm/codes.cuh"
#include "cuda/norm/store.cuh"

namespace fastnorm::cuda {

template <class T>
struct RowSink<Sink::kStatic, Access::kVector, T> {
  __device__ __forceinline__ RowSink(const NormParams& p, const RowIndex& index)
      : codes(row_address(p.quant.codes, p.quant.codes_upper, index)),
        y(row_address(p.y, p.y_upper, index)) {}
  char* const codes;
  char* const y;  // Variant::kStoresY
};

template <class T, CodeType kType, class Sink, class Tile>
__device__ __forceinline__ void put_static(float (&z)[T::kPerVector], float inverse,
                                           const Sink& sink, int v, const Place<Tile>& place,
                                           bool stores) {
  uint32_t words[2];
  scale_values(z, inverse);
  make_codes(kType, z, words);
  if (stores)
    store_codes<T::kPerVector>(place.template address<T::kPerVector>(sink.codes, v), words, false);
}

}  // namespace fastnorm::cuda
