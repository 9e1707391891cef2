#include "cuda/norm/launch_params.h"

#include <bit>

namespace fastnorm::cuda {

uint8_t access_bytes(uint64_t bits) {
  bits |= 16;
  return static_cast<uint8_t>(bits & (~bits + 1));
}

namespace {

RowRef row_ref(const RowTensor& t) { return {reinterpret_cast<char*>(t.data), t.stride_bytes[0]}; }

RowStrides upper_strides(const RowTensor& t) { return {{t.stride_bytes[1], t.stride_bytes[2]}}; }

uint32_t norm_bits(const NormDesc& d, const NormPlan& plan) {
  const auto operand = [&](const WeightTensor& c, uint32_t element) {
    return !c ? 0 : static_cast<uint32_t>(operand_type(c.dtype, d.dtype)) * element;
  };
  uint32_t bits = operand(d.weight, kWeightElement) | operand(d.bias, kBiasElement);
  if (d.outer_rank == 1) bits |= kSingleIndex;
  if (d.outer_rank == 3) bits |= kThreeIndices;
  if (plan.stream_loads) bits |= kStreamLoads;
  if (d.mean || d.rstd) bits |= kStoreStatistics;
  if ((d.weight.head_stride_bytes | d.bias.head_stride_bytes) != 0) bits |= kHeadWeights;
  if ((d.flags & FASTNORM_NORM_PDL_WAIT) != 0) {
    bits |= (d.flags & FASTNORM_NORM_PDL_CONSTANT_WEIGHTS) != 0 ? kWaitAfterWeights : kWaitFirst;
  }
  if ((d.flags & FASTNORM_NORM_PDL_TRIGGER) != 0) bits |= kTrigger;
  if (rounds_normalized(d.rounding)) bits |= kRoundNormalized;
  if (d.residual_rounding == FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS) bits |= kRoundSum;
  return bits;
}

uint8_t row_align(const RowTensor& t) { return access_bytes(address_bits(t.data, t.stride_bytes)); }

uint8_t row_type(const RowTensor& t, const NormDesc& d) {
  return static_cast<uint8_t>(t ? operand_type(t.dtype, d.dtype) : OperandType::kAbsent);
}

uint8_t align_of_weight(const WeightTensor& c) {
  return access_bytes(address_bits(c.data, c.outer_stride_bytes) |
                      static_cast<uint64_t>(c.head_stride_bytes));
}

RowStrides upper_strides(const WeightTensor& c) { return {{c.stride_bytes(1), c.stride_bytes(2)}}; }

ScaleRule scale_rule(const QuantDesc& q) {
  switch (scheme_of(q.scheme).scale) {
    case SchemeScale::kNone:
      return ScaleRule::kNoCodes;
    case SchemeScale::kInput:
      return ScaleRule::kStatic;
    case SchemeScale::kE4M3:
      return ScaleRule::kNvfp4;
    case SchemeScale::kE8M0:
    case SchemeScale::kDynamic:
      break;
  }
  return q.pow2 ? ScaleRule::kPow2 : ScaleRule::kQuotient;
}

void fill_quant(const NormDesc& d, QuantParams* params) {
  const QuantDesc& q = d.quant;
  QuantParams& p = *params;
  p.codes = row_ref(q.codes);
  p.scale = row_ref(q.scale);
  p.codes_upper = upper_strides(q.codes);
  p.scale_upper = upper_strides(q.scale);
  p.scale_step = q.scale_step(d.n);
  p.static_scale =
      reinterpret_cast<const float*>(q.tensor_scale != nullptr ? q.tensor_scale : q.global_scale);
  p.amax = reinterpret_cast<float*>(q.amax);
  p.block = q.block;
  p.block_shift = std::bit_width(static_cast<uint32_t>(q.block)) - 1;
  p.clamp = q.clamp;
  p.clamp_scale = reinterpret_cast<const float*>(q.clamp_scale);
  p.amax_floor = q.amax_floor;
  p.code_type = q.code_type();
  p.scale_type = q.scale_type();
  p.rule = scale_rule(q);
  // The compiler computes the quotients: the thread may have another rounding mode.
  p.greatest = p.code_type == CodeType::kE4M3   ? 448.0f
               : p.code_type == CodeType::kE5M2 ? 57344.0f
                                                : 127.0f;
  p.inverse_greatest = p.code_type == CodeType::kE4M3   ? 1.0f / 448.0f
                       : p.code_type == CodeType::kE5M2 ? 1.0f / 57344.0f
                                                        : 1.0f / 127.0f;
  p.greatest_exponent = p.code_type == CodeType::kE4M3   ? 8
                        : p.code_type == CodeType::kE5M2 ? 15
                                                         : 2;
  p.exponent_carry = p.code_type == CodeType::kE2M1 ? 0x3fffff : 0x1fffff;
  p.codes_aligned = codes_aligned(d);
  p.from_rounded = q.from_rounded;
  p.swizzled = q.swizzled;
  p.divides = q.divides;
  p.wants_extras = d.y || q.has_extras();
}

}  // namespace

// Its quotients are 0, so the remainder is the dividend.
constexpr Divisor kNoDivisor = {0, 0, 31};

// The multiplier is 2^32 + m; m is stored. It is 2^(32 + k) / value rounded up, for the least k
// with 2^k >= value. Its error is less than value <= 2^k. So it stays below one unit in the
// quotient of any 32-bit dividend.
Divisor make_divisor(uint32_t value) {
  const auto k = static_cast<uint32_t>(std::bit_width(value - 1));
  const uint64_t over = ((uint64_t{1} << k) - value) << 32;  // (2^k - value) * 2^32 < 2^63
  return {value, static_cast<uint32_t>(over / value + 1), k - 1};
}

namespace {

// Everything except how rows become indices. The struct is not cleared, which would be a good part
// of a call's cost. All that the call's kernel reads is set.
[[gnu::always_inline]] inline void fill_params(const NormDesc& d, const NormPlan& plan,
                                               NormParams* params) {
  NormParams& p = *params;
  p.bits = p.bits_again = norm_bits(d, plan);
  p.rows = static_cast<uint32_t>(d.rows);
  const int64_t row_bytes = d.n * dtype_bytes(d.dtype);
  p.vectors = static_cast<int32_t>((row_bytes + 15) / 16);
  if (plan.entry->key.access == Access::kUnaligned) {
    const auto missing = static_cast<uint32_t>(-row_bytes & 15) / dtype_bytes(d.dtype);
    p.bits = p.bits_again = p.bits | missing * kMissingElement;
  }
  p.prefetch_rows = plan.prefetch_rows;
  p.x = row_ref(d.x);
  p.weight = reinterpret_cast<const char*>(d.weight.data);
  p.bias = reinterpret_cast<const char*>(d.bias.data);
  p.inv_n = d.inv_n;
  p.eps = d.eps;
  p.weight_offset = d.weight_offset;
  p.y = row_ref(d.y);
  p.residual = row_ref(d.residual);
  p.residual_out = row_ref(d.residual_out);
  p.n = d.n;
  p.weight_head_stride = d.weight.head_stride_bytes;
  p.bias_head_stride = d.bias.head_stride_bytes;
  p.mean = row_ref(d.mean);
  p.rstd = row_ref(d.rstd);
  if (d.outer_rank > 1) {
    p.x_upper = upper_strides(d.x);
    p.y_upper = upper_strides(d.y);
    p.residual_upper = upper_strides(d.residual);
    p.residual_out_upper = upper_strides(d.residual_out);
    p.mean_upper = upper_strides(d.mean);
    p.rstd_upper = upper_strides(d.rstd);
  }
  if (plan.entry->key.sink != Sink::kStore) fill_quant(d, &p.quant);
  if (plan.entry->key.access != Access::kAny) return;
  p.rounding = static_cast<uint8_t>(d.rounding);
  p.residual_rounding = static_cast<uint8_t>(d.residual_rounding);
  p.residual_type = row_type(d.residual, d);
  p.residual_out_type = row_type(d.residual_out, d);
  p.y_type = row_type(d.y, d);
  p.sum_type = static_cast<uint8_t>(operand_type(d.sum_dtype, d.dtype));
  p.x_align = row_align(d.x);
  p.residual_align = row_align(d.residual);
  p.y_align = row_align(d.y);
  p.residual_out_align = row_align(d.residual_out);
  p.weight_align = align_of_weight(d.weight);
  p.bias_align = align_of_weight(d.bias);
}

}  // namespace

RotationParams rotation_of(const QuantDesc& q, int64_t n) {
  RotationParams r = {};
  r.signs = reinterpret_cast<const float*>(q.signs.data);
  r.signs_repeat = q.sign_columns(n) == n ? ~uint64_t{0} : static_cast<uint64_t>(q.rotation - 1);
  r.block = q.rotation;
  // 1 / sqrt(block), rounded to nearest: the thread may have another rounding mode.
  r.factor = q.rotation == 16   ? 0.25f
             : q.rotation == 32 ? 0x1.6a09e6p-3f
             : q.rotation == 64 ? 0.125f
                                : 0x1.6a09e6p-4f;
  r.of_y = q.y_rotated;
  return r;
}

NormCallParams make_params(const NormDesc& d, const NormPlan& plan) {
  NormCallParams p;
  fill_params(d, plan, &p);
  if (plan.entry->key.access == Access::kAny) {
    p.weight_upper = upper_strides(d.weight);
    p.bias_upper = upper_strides(d.bias);
    p.rotation = rotation_of(d.quant, d.n);
  }
  for (int i = 0; i + 1 < d.outer_rank; ++i)
    p.outer[i] = make_divisor(static_cast<uint32_t>(d.outer[i]));
  return p;
}

NormCallParams make_general_params(const NormDesc& d, Sink sink) {
  constexpr auto entry_of = [](Sink to) {
    NormEntry entry;
    entry.key = general_key(Dtype::kF32, Stat::kRms, to);
    return entry;
  };
  static constexpr NormEntry kStores = entry_of(Sink::kStore), kCodes = entry_of(Sink::kQuant);
  NormPlan plan;
  plan.entry = sink == Sink::kStore ? &kStores : &kCodes;
  return make_params(d, plan);
}

NormCallParams make_input_params(const NormDesc& d) {
  NormCallParams p = {};
  if (d.outer_rank == 1) p.bits = kSingleIndex;
  if (d.outer_rank == 3) p.bits = kThreeIndices;
  p.bits_again = p.bits;
  p.rows = static_cast<uint32_t>(d.rows);
  p.n = d.n;
  p.vectors = static_cast<int32_t>((d.n * dtype_bytes(d.dtype) + 15) / 16);
  p.x = row_ref(d.x);
  p.residual = row_ref(d.residual);
  p.x_upper = upper_strides(d.x);
  p.residual_upper = upper_strides(d.residual);
  p.residual_type = row_type(d.residual, d);
  p.x_align = row_align(d.x);
  p.residual_align = row_align(d.residual);
  for (int i = 0; i + 1 < d.outer_rank; ++i)
    p.outer[i] = make_divisor(static_cast<uint32_t>(d.outer[i]));
  return p;
}

NormPairParams make_pair_params(std::span<const NormCall> calls, const Grid& grid) {
  NormPairParams pair;  // unset if there is no second call
  for (size_t i = 0; i < calls.size(); ++i) {
    const NormDesc& d = *calls[i].desc;
    NormParams& p = pair.call[i];
    fill_params(d, *calls[i].plan, &p);
    if (grid.form == GridForm::kHeads) {
      p.rows = static_cast<uint32_t>(d.outer[0]);
    } else {
      p.outer[0] = d.outer_rank == 1 ? kNoDivisor : make_divisor(static_cast<uint32_t>(d.outer[0]));
    }
  }
  NormParams& first = pair.call[0];
  if (grid.form == GridForm::kHeads) {
    first.first_blocks = grid.first_blocks;
  } else {
    first.second_share =
        calls.size() > 1 ? second_share(calls[0].plan->blocks, calls[1].plan->blocks) : 0;
  }
  return pair;
}

}  // namespace fastnorm::cuda
