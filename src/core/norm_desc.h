// One normalisation in canonical form: what check makes of the caller's tensors, and all that plan, the kernels and the tests
// need. Rows are flattened, leading dimensions folded, strides in bytes, defaults filled in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "fastnorm/norm.h"

namespace fastnorm {

inline constexpr int kMaxOuter = 3;  // leading dimensions of a rank-4 tensor

// A tensor with one row (or one value) for each row of x. Row r is at data + sum(index[d] * stride_bytes[d]) where index are the
// digits of r in base outer[], index[0] the fastest: r = index[0] + outer[0] * (index[1] + outer[1] * index[2]).
struct RowTensor {
  std::byte* data = nullptr;  // nullptr = absent
  int64_t stride_bytes[kMaxOuter] = {};
  Dtype dtype = Dtype::kUnknown;

  explicit operator bool() const { return data != nullptr; }
};

// A tensor with one value for each column, shared by all rows or one row of it a head.
struct ColumnTensor {
  const std::byte* data = nullptr;  // [n] or [heads, n]; nullptr = absent
  int64_t head_stride_bytes = 0;    // 0 = shared by all rows
  Dtype dtype = Dtype::kUnknown;

  explicit operator bool() const { return data != nullptr; }
};

struct NormDesc {
  int64_t rows = 0;
  int64_t n = 0;
  int32_t outer_rank = 1;                // dimensions of outer that count, 1 to 3
  int64_t outer[kMaxOuter] = {1, 1, 1};  // innermost first; the product is rows
  Dtype dtype = Dtype::kF32;             // T: of x and y
  fastnorm_norm_kind kind = FASTNORM_NORM_RMS;
  fastnorm_rounding rounding = FASTNORM_ROUND_ONCE;
  fastnorm_residual_rounding residual_rounding = FASTNORM_RESIDUAL_EXACT;
  Dtype sum_dtype = Dtype::kF32;  // R: what residual_rounding rounds to
  float eps = 0;
  float weight_offset = 0;
  float inv_n = 0;                         // f32(1 / f32(n))
  RowTensor x, residual, y, residual_out;  // rows of n elements
  RowTensor mean, rstd;                    // f32, one value a row
  ColumnTensor weight, bias;               // the head of row r is its index[0]
};

}  // namespace fastnorm
