#include "cuda/launch_params.h"

#include <bit>

namespace fastnorm::cuda {
namespace {

RowRef row_ref(const RowTensor& t) {
  return {reinterpret_cast<char*>(t.data),
          {t.stride_bytes[0], t.stride_bytes[1], t.stride_bytes[2]}};
}

ColumnRef column_ref(const ColumnTensor& c) {
  return {reinterpret_cast<const char*>(c.data), c.head_stride_bytes};
}

ColumnType column_type(const ColumnTensor& c, Dtype dtype) {
  if (!c) return ColumnType::kAbsent;
  return c.dtype == dtype ? ColumnType::kElement : ColumnType::kF32;
}

// Of 16, 4 and 2 bytes, the widest access that all of `bits` allow.
uint8_t access_bytes(uint64_t bits) { return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 2; }

uint8_t row_align(const RowTensor& t, int32_t outer_rank) {
  uint64_t bits = reinterpret_cast<uintptr_t>(t.data);
  for (int i = 0; i < outer_rank; ++i) bits |= static_cast<uint64_t>(t.stride_bytes[i]);
  return access_bytes(bits);
}

uint8_t column_align(const ColumnTensor& c) {
  return access_bytes(reinterpret_cast<uintptr_t>(c.data) |
                      static_cast<uint64_t>(c.head_stride_bytes));
}

}  // namespace

// With 2^shift < value <= 2^(shift + 1) the multiplier, 2^(32 + shift) / value rounded up, is below 2^32 and its error, less than
// value / 2^(32 + shift), stays below one unit in the quotient of any dividend below 2^31.
Divisor make_divisor(uint32_t value) {
  const auto shift = static_cast<uint32_t>(std::bit_width(value - 1) - 1);
  const uint64_t power = uint64_t{1} << (32 + shift);
  return {value, static_cast<uint32_t>((power + value - 1) / value), shift};
}

NormParams make_params(const NormDesc& d, const NormPlan& plan) {
  NormParams p = {};
  p.x = row_ref(d.x);
  p.residual = row_ref(d.residual);
  p.y = row_ref(d.y);
  p.residual_out = row_ref(d.residual_out);
  p.mean = row_ref(d.mean);
  p.rstd = row_ref(d.rstd);
  p.weight = column_ref(d.weight);
  p.bias = column_ref(d.bias);
  p.n = d.n;
  p.rows = static_cast<uint32_t>(d.rows);
  p.vectors = static_cast<int32_t>((d.n * dtype_bytes(d.dtype) + 15) / 16);
  p.outer_rank = d.outer_rank;
  for (int i = 0; i + 1 < d.outer_rank; ++i)
    p.outer[i] = make_divisor(static_cast<uint32_t>(d.outer[i]));
  p.inv_n = d.inv_n;
  p.eps = d.eps;
  p.weight_offset = d.weight_offset;
  p.weight_type = column_type(d.weight, d.dtype);
  p.bias_type = column_type(d.bias, d.dtype);
  p.stream_loads = plan.stream_loads;
  p.prefetch_rows = plan.prefetch_rows;
  p.wide_rows = d.rows > INT32_MAX;
  if (plan.entry->key.access == Access::kVector) return p;
  p.rounding = static_cast<uint8_t>(d.rounding);
  p.residual_rounding = static_cast<uint8_t>(d.residual_rounding);
  p.residual_f32 = d.residual && d.residual.dtype != d.dtype;
  p.residual_out_f32 = d.residual_out && d.residual_out.dtype != d.dtype;
  p.x_align = row_align(d.x, d.outer_rank);
  p.residual_align = row_align(d.residual, d.outer_rank);
  p.y_align = row_align(d.y, d.outer_rank);
  p.residual_out_align = row_align(d.residual_out, d.outer_rank);
  p.weight_align = column_align(d.weight);
  p.bias_align = column_align(d.bias);
  return p;
}

}  // namespace fastnorm::cuda
