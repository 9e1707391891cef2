// Where rows and parameters of a gradient are.
#pragma once

#include "cuda/common/any_row.cuh"
#include "cuda/norm_backward/params.h"

namespace fastnorm::cuda {

// The indices of a row. Rows of one group follow each other.
__device__ __forceinline__ RowIndex backward_index(const NormBackwardParams& p, uint32_t row) {
  RowIndex index = {(p.bits & kBackwardSingleIndex) != 0, {row, 0, 0}};
  if (index.single) return index;
  const uint32_t upper = quotient(row, p.outer[0]);
  const uint32_t top = (p.bits & kBackwardThreeIndices) != 0 ? quotient(upper, p.outer[1]) : 0;
  index.digit[0] = row - upper * p.outer[0].value;
  index.digit[1] = upper - top * p.outer[1].value;
  index.digit[2] = top;
  return index;
}

__device__ __forceinline__ int64_t row_offset(const BackwardTensor& tensor, const RowIndex& index) {
  int64_t offset = index.digit[0] * tensor.stride[0];
  if (!index.single)
    offset += index.digit[1] * tensor.stride[1] + index.digit[2] * tensor.stride[2];
  return offset;
}

__device__ __forceinline__ char* row_address(const BackwardTensor& tensor, const RowIndex& index) {
  return tensor.data + row_offset(tensor, index);
}

// A group's row of a parameter: that of its first row.
__device__ __forceinline__ char* group_address(const NormBackwardParams& p,
                                               const BackwardTensor& tensor, uint32_t group) {
  return row_address(tensor, backward_index(p, group * p.shared_rows));
}

template <Stat kStat>
__device__ __forceinline__ Statistics load_statistics(const NormBackwardParams& p,
                                                      const RowIndex& index) {
  Statistics s = {0.0f, ptx::ld_global_f32(row_address(p.rstd, index))};
  if constexpr (kStat == Stat::kLayer) s.mean = ptx::ld_global_f32(row_address(p.mean, index));
  return s;
}

// Without an address where the tensor is absent.
__device__ __forceinline__ AnyDtypeRow row_or_none(const BackwardTensor& t, const RowIndex& index) {
  return AnyDtypeRow(t.data == nullptr ? nullptr : row_address(t, index), t.dtype);
}

// The weight of a row as the forward multiplies by it: 1 where it is absent.
template <int kCount>
__device__ __forceinline__ void load_gain(float (&gain)[kCount], const NormBackwardParams& p,
                                          const AnyDtypeRow& weight, int64_t element, int count) {
  if (weight.data == nullptr) {
#pragma unroll
    for (float& g : gain) g = 1.0f;
    return;
  }
  AnyWords<kCount> words;
  load_any(words, weight, element, count);
  unpack_any(gain, words, weight.dtype);
#pragma unroll
  for (float& g : gain) g = gain_of(g, p);
}

// Elements of vector number `vector` that the row has, at most kCount; 0 or less past its end.
template <int kCount>
__device__ __forceinline__ int elements_of(const NormBackwardParams& p, int64_t vector) {
  const int64_t left = p.n - vector * kCount;
  return left >= kCount ? kCount : left < 0 ? 0 : static_cast<int>(left);
}

// Number `sum` of sums_of().
__device__ __forceinline__ const BackwardTensor& sum_tensor(const NormBackwardParams& p, int sum) {
  return sum == 0   ? p.dweight
         : sum == 1 ? p.dbias
         : sum == 2 ? p.branch.dweight
         : sum == 3 ? p.branch.dbias
                    : p.branch.dresidual_gate;
}

// dweight or dbias: one element from its sum, which may be -0.
__device__ __forceinline__ void store_sum(const NormBackwardParams& p, const BackwardTensor& tensor,
                                          char* address, float sum, bool accumulates) {
  sum = positive_zero(sum);
  if (accumulates) sum = __fadd_rn(load_any_element(address, tensor.dtype), sum);
  store_any_element(address, sum, tensor.dtype);
}

}  // namespace fastnorm::cuda
