// What shapes the tensors of a norm call must have, given that of x. check_tensor() has accepted
// each tensor.
#pragma once

#include <cstdint>

#include "core/common/check.h"
#include "core/norm/desc.h"

namespace fastnorm {

inline constexpr int32_t kMaxRank = 8;
inline constexpr int64_t kMaxColumns = int64_t{1} << 32;  // n

// x itself: the length of a row.
fastnorm_status check_x_shape(const fastnorm_tensor& x, Error& error);

// residual, y, residual_out: x's shape.
fastnorm_status check_row_shape(const char* name, const fastnorm_tensor& t,
                                const fastnorm_tensor& x, Error& error);

// weight, bias: [.., n] that broadcasts against x, right-aligned; or [.., group] for groups of
// columns.
fastnorm_status check_weight_shape(const char* name, const fastnorm_tensor& t,
                                   const fastnorm_tensor& x, int64_t group, Error& error);
inline fastnorm_status check_weight_shape(const char* name, const fastnorm_tensor& t,
                                          const fastnorm_tensor& x, Error& error) {
  return check_weight_shape(name, t, x, x.shape[x.ndim - 1], error);
}

// mean, rstd: x.shape[:-1], or that with a last 1.
fastnorm_status check_statistic_shape(const char* name, const fastnorm_tensor& t,
                                      const fastnorm_tensor& x, Error& error);

// quantized: x's shape. `pairs`: a byte holds two codes.
fastnorm_status check_code_shape(const fastnorm_tensor& t, const fastnorm_tensor& x, bool pairs,
                                 Error& error);

// quantized with f4 codes: each row begins at a byte.
fastnorm_status check_code_strides(const fastnorm_tensor& t, Error& error);

// scale: x.shape[:-1] + [scales]. With one scale a row (`per_row`) the last extent may be missing.
fastnorm_status check_scale_shape(const fastnorm_tensor& t, const fastnorm_tensor& x,
                                  int64_t scales, bool per_row, Error& error);

// Describes a tensor with a row for each row of x, of which `rank` leading dimensions count: its
// first `leading` dimensions. Without strides, rows lie `row_bytes` apart.
FASTNORM_HOT void describe_rows(const fastnorm_tensor& t, int32_t leading, int64_t row_bytes,
                                int32_t rank, RowTensor* rows) {
  rows->data = address_of(t);
  rows->dtype = dtype_from(t.dtype);
  const int64_t bytes = dtype_bytes(rows->dtype);
  auto compact = static_cast<uint64_t>(row_bytes);  // unsigned: without rows it may overflow
  for (int32_t i = 0; i < rank; ++i) {
    const int32_t dim = leading - 1 - i;
    rows->stride_bytes[i] =
        t.strides != nullptr ? stride_bytes_of(t, dim, bytes) : static_cast<int64_t>(compact);
    compact *= static_cast<uint64_t>(t.shape[dim]);
  }
}

}  // namespace fastnorm
