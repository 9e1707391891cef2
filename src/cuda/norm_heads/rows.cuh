// Where a head's row and its values are, and what every form stores of it beside the row.
#pragma once

#include "cuda/common/any_row.cuh"
#include "cuda/norm_heads/params.h"

namespace fastnorm::cuda {

__device__ __forceinline__ char* address_of(const HeadsTensor& tensor, uint32_t token,
                                            uint32_t head) {
  return tensor.data + int64_t{token} * tensor.token_stride + int64_t{head} * tensor.head_stride;
}

// Stores the statistics that the call asks for. `squared`: the sum of squares, of LAYER about the
// mean. Part is HeadsPartParams or HeldPartParams.
template <bool kSquares, class Part>
__device__ __forceinline__ void put_statistics(const Part& part, uint32_t token, uint32_t head,
                                               float mean, float rstd, float squared) {
  const auto put = [&](const HeadsTensor& to, int number, float value) {
    if (to.data != nullptr)
      ptx::st_global_u32(address_of(to, token, head) + number * 4, __float_as_uint(value));
  };
  if constexpr (kSquares) {
    const bool layer = (part.bits & kHeadsLayer) != 0;
    if (layer) put(part.sumsq, 0, mean);
    put(part.sumsq, layer ? 1 : 0, squared);
  }
  put(part.mean, 0, mean);
  put(part.rstd, 0, rstd);
}

// A head's weight times the scale of its codes.
__device__ __forceinline__ void put_head_weight(const HeadWeightParams& w, uint32_t token,
                                                uint32_t head, float weight, float scale) {
  ptx::st_global_u32(address_of(w.out, token, head),
                     __float_as_uint(__fmul_rn(__fmul_rn(weight, scale), w.factor)));
}

}  // namespace fastnorm::cuda
