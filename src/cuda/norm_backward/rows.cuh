// Where rows and parameters of a gradient are.
#pragma once

#include "cuda/common/any_row.cuh"
#include "cuda/norm_backward/arithmetic.cuh"

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

__device__ __forceinline__ void store_statistics(const NormBackwardParams& p, const RowIndex& index,
                                                 const Statistics& s, bool layer) {
  ptx::st_global_u32(row_address(p.rstd, index), __float_as_uint(s.rstd));
  if (layer) ptx::st_global_u32(row_address(p.mean, index), __float_as_uint(s.mean));
}

// A row in vectors of as many elements as T's.
template <class T>
using DtypeRow = AnyRow<T, char, Dtype>;

// Without an address where the tensor is absent.
template <class T>
__device__ __forceinline__ DtypeRow<T> row_or_none(const BackwardTensor& t, const RowIndex& index) {
  return {t.data == nullptr ? nullptr : row_address(t, index), t.dtype};
}

// The first `count` values of a vector. The others are zero.
template <class T>
__device__ __forceinline__ void load_values(float (&f)[T::kPerVector], const DtypeRow<T>& row,
                                            int64_t vector, int count) {
  AnyVectors<T, 1> loaded;
  loaded.load_part(row, vector, count);
  loaded.take(f, 0, row.type);
}
template <class T>
__device__ __forceinline__ void store_values(const float (&f)[T::kPerVector],
                                             const DtypeRow<T>& row, int64_t vector, int count) {
  store_part<Part::kCounted, T>(f, row, vector, count);
}

// f * rstd and, where there is one, the row that is added, in place.
template <class T>
__device__ __forceinline__ void add_residual(float (&f)[T::kPerVector], float rstd,
                                             const DtypeRow<T>& residual_in, int64_t vector,
                                             int count) {
  if (residual_in.data != nullptr) {
    float add[T::kPerVector];
    load_values(add, residual_in, vector, count);
#pragma unroll
    for (int i = 0; i < T::kPerVector; ++i) f[i] = __fmaf_rn(f[i], rstd, add[i]);
  } else {
    scale_values(f, rstd);
  }
}

// f * gain + bias, in place. The bias may be absent.
template <class T>
__device__ __forceinline__ void apply_gain(float (&f)[T::kPerVector],
                                           const float (&gain)[T::kPerVector],
                                           const DtypeRow<T>& bias, int64_t vector, int count) {
  if (bias.data == nullptr) {
    multiply(f, gain);
  } else {
    float added[T::kPerVector];
    load_values(added, bias, vector, count);
#pragma unroll
    for (int i = 0; i < T::kPerVector; ++i) f[i] = __fmaf_rn(f[i], gain[i], added[i]);
  }
}

// A row of dy, which may be one element that every column reads.
template <class T>
struct GradientRow {
  static constexpr int kCount = T::kPerVector;

  __device__ __forceinline__ GradientRow(char* address, Dtype dtype, bool is_scalar)
      : row(address, dtype), scalar(is_scalar) {}
  __device__ __forceinline__ GradientRow(const NormBackwardParams& p, const RowIndex& index)
      : GradientRow(row_address(p.dy, index), p.dy.dtype, p.dy_is_scalar) {}

  __device__ __forceinline__ float element(int64_t i) const { return row.element(scalar ? 0 : i); }
  // Starts the loads of a vector, which take() completes.
  __device__ __forceinline__ void load(AnyVectors<T, 1>& v, int64_t vector, int count) const {
    v.load_part(row, scalar ? 0 : vector, scalar && count > 1 ? 1 : count);
  }
  __device__ __forceinline__ void take(float (&f)[kCount], const AnyVectors<T, 1>& v,
                                       int count) const {
    v.take(f, 0, row.type);
    if (!scalar) return;
#pragma unroll
    for (int i = kCount - 1; i >= 0; --i) f[i] = i < count ? f[0] : 0.0f;
  }
  __device__ __forceinline__ void take(float (&f)[kCount], int64_t vector, int count) const {
    AnyVectors<T, 1> v;
    load(v, vector, count);
    take(f, v, count);
  }

  const DtypeRow<T> row;
  const bool scalar;
};

// The weight of a row as the forward multiplies by it.
template <class T>
__device__ __forceinline__ void load_gain(float (&gain)[T::kPerVector], const NormBackwardParams& p,
                                          const DtypeRow<T>& weight, int64_t vector, int count) {
  load_factors(gain, weight, vector, count,
               [&](float g) { return gain_of(g, p.weight_offset, p, kBackwardRoundGain); });
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
