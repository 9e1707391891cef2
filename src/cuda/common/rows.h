// Where rows are, and of which dtype, in parameters of kernels. CUDA-free.
#pragma once

#include <cstdint>

#include "core/common/dtype.h"

namespace fastnorm::cuda {

// A tensor with one row, or value, for each row of x.
struct RowRef {
  char* data;      // nullptr if an optional tensor is absent
  int64_t stride;  // bytes for each first index of the row map
};

// Bytes for each second and third index of a row, if rows have more than one.
struct RowStrides {
  int64_t stride[2];
};

// The quotient of any 32-bit row number by `value`, without a division. With t = high word of row *
// multiplier, it is (t + (row - t >> 1)) >> shift. This cannot divide by 1, for which row_index()
// is not called.
struct Divisor {
  uint32_t value;
  uint32_t multiplier;
  uint32_t shift;
};

// The dtype of an operand: x's (kElement) or one of the other two. With 16-bit x these are f32 and
// the other 16-bit dtype. With f32 x they are f16 and bf16.
enum class OperandType : uint32_t {
  kAbsent,
  kElement,
  kF32,
  kOther16,
  kF16 = kF32,
  kBF16 = kOther16
};

constexpr OperandType operand_type(Dtype dtype, Dtype of_x) {
  if (dtype == of_x) return OperandType::kElement;
  const Dtype first = of_x == Dtype::kF32 ? Dtype::kF16 : Dtype::kF32;
  return dtype == first ? OperandType::kF32 : OperandType::kOther16;
}

}  // namespace fastnorm::cuda
