#include "cuda/launch_params.h"

#include <bit>

#include "cuda/norm_kernels.h"

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

// Of 16, 8, 4 and 2 bytes, the widest access that all of `bits` allow.
uint8_t access_bytes(uint64_t bits) {
  bits |= 16;
  return static_cast<uint8_t>(bits & (~bits + 1));
}

uint8_t row_align(const RowTensor& t, int32_t outer_rank) {
  uint64_t bits = reinterpret_cast<uintptr_t>(t.data);
  for (int i = 0; i < outer_rank; ++i) bits |= static_cast<uint64_t>(t.stride_bytes[i]);
  return access_bytes(bits);
}

uint8_t column_align(const ColumnTensor& c) {
  return access_bytes(reinterpret_cast<uintptr_t>(c.data) |
                      static_cast<uint64_t>(c.head_stride_bytes));
}

QuantParams quant_params(const NormDesc& d) {
  const QuantDesc& q = d.quant;
  QuantParams p = {};
  p.codes = row_ref(q.codes);
  p.scale = row_ref(q.scale);
  p.scale_step = q.scale_step(d.n);
  p.tensor_scale = reinterpret_cast<const float*>(q.tensor_scale);
  p.global_scale = reinterpret_cast<const float*>(q.global_scale);
  p.amax = reinterpret_cast<float*>(q.amax);
  p.block = q.block;
  p.block_shift = std::bit_width(static_cast<uint32_t>(q.block)) - 1;
  p.clamp = q.clamp;
  p.amax_floor = q.amax_floor;
  p.code_type = q.code_type();
  p.scale_type = q.scale_type();
  p.codes_wanted = q.scheme != FASTNORM_QUANT_NONE;
  p.codes_aligned = codes_aligned(d);
  p.from_rounded = q.sees_rounded();
  p.pow2 = q.pow2;
  p.swizzled = q.swizzled;
  p.nvfp4 = q.scheme == FASTNORM_QUANT_NVFP4;
  return p;
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
  p.wait = (d.flags & FASTNORM_NORM_PDL_WAIT) == 0               ? GridWait::kNone
           : (d.flags & FASTNORM_NORM_PDL_CONSTANT_COLUMNS) != 0 ? GridWait::kAfterColumns
                                                                 : GridWait::kFirst;
  p.trigger = (d.flags & FASTNORM_NORM_PDL_TRIGGER) != 0;
  p.stream_loads = plan.stream_loads;
  p.prefetch_rows = plan.prefetch_rows;
  p.wide_rows = d.rows > INT32_MAX;
  if (plan.entry->key.sink != Sink::kStore) p.quant = quant_params(d);
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

size_t calls_together(std::span<const NormCall> calls) {
  constexpr uint64_t kMostBlocks = 0x7fffffff;
  const NormEntry* entry = calls.front().plan->entry;
  if (!runs_many(*entry)) return 1;
  size_t count = 0;
  uint64_t blocks = 0;
  for (const NormCall& call : calls) {
    blocks += call.plan->blocks;
    if (call.plan->entry != entry || call.desc->flags != calls.front().desc->flags ||
        blocks > kMostBlocks) {
      break;
    }
    ++count;
  }
  return count;
}

int32_t count_grids(std::span<const NormCall> calls) {
  int32_t grids = 0;
  for (; !calls.empty(); calls = calls.subspan(calls_together(calls))) ++grids;
  return grids;
}

void make_many_params(std::span<const NormCall> calls, NormManyParams* params, uint64_t* blocks) {
  *blocks = 0;
  params->count = static_cast<int32_t>(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    params->first_block[i] = static_cast<uint32_t>(*blocks);
    params->call[i] = make_params(*calls[i].desc, *calls[i].plan);
    *blocks += calls[i].plan->blocks;
  }
  for (size_t i = calls.size(); i < kMaxCalls; ++i)
    params->first_block[i] = static_cast<uint32_t>(*blocks);
}

}  // namespace fastnorm::cuda
