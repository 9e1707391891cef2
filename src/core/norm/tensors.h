// The tensors of a norm call, each once. A loop over them serves clearing, joining of dimensions,
// overlap, and bytes read and written.
#pragma once

#include <bit>

#include "core/common/check.h"
#include "core/common/schema.h"
#include "core/norm/desc.h"
#include "core/norm/row_map.h"

namespace fastnorm {

// The functions below call f(Of<field>(), tensor) for each tensor of a description, present or not,
// while f returns true, and return whether it always did. A tensor is a RowTensor, a WeightTensor,
// a Modulator, or the address of a scalar. The order is that in which errors name tensors.

// The tensors that a call without codes and stages may have.
template <class Desc, class F>
FASTNORM_HOT constexpr bool for_each_plain_tensor(Desc& d, const F& f) {
  using A = fastnorm_norm_args;
  using schema::Of;
  return f(Of<&A::x>(), d.x) && f(Of<&A::residual>(), d.residual) &&
         f(Of<&A::weight>(), d.weight) && f(Of<&A::bias>(), d.bias) && f(Of<&A::y>(), d.y) &&
         f(Of<&A::residual_out>(), d.residual_out) && f(Of<&A::mean>(), d.mean) &&
         f(Of<&A::rstd>(), d.rstd);
}

// A scale is an input with PER_TENSOR.
template <class Desc, class F>
FASTNORM_HOT constexpr bool for_each_quant_tensor(Desc& q, const F& f) {
  using Q = fastnorm_quant;
  using schema::Of;
  return f(Of<&Q::quantized>(), q.codes) && f(Of<&Q::scale>(), q.scale) &&
         f(Of<&Q::scale, false>(), q.tensor_scale) && f(Of<&Q::global_scale>(), q.global_scale) &&
         f(Of<&Q::clamp_scale>(), q.clamp_scale) && f(Of<&Q::amax>(), q.amax) &&
         f(Of<&Q::rotation_signs>(), q.signs);
}

template <class Desc, class F>
FASTNORM_HOT constexpr bool for_each_stage_tensor(Desc& s, const F& f) {
  using A = fastnorm_norm_args;
  using schema::Of;
  return f(Of<&A::gate>(), s.gate) && f(Of<&A::mean_in>(), s.mean_in) &&
         f(Of<&A::rstd_in>(), s.rstd_in) && f(Of<&A::sumsq>(), s.sumsq) &&
         f(Of<&A::branch_weight>(), s.branch_weight) && f(Of<&A::branch_bias>(), s.branch_bias) &&
         f(Of<&A::branch_rstd>(), s.branch_rstd) && f(Of<&A::sum_scale>(), s.sum_scale) &&
         f(Of<&A::residual_gate>(), s.residual_gate) &&
         f(Of<&A::residual_gate_table>(), s.residual_gate.table) &&
         f(Of<&A::modulation_scale>(), s.modulation_scale) &&
         f(Of<&A::scale_table>(), s.modulation_scale.table) &&
         f(Of<&A::modulation_shift>(), s.modulation_shift) &&
         f(Of<&A::shift_table>(), s.modulation_shift.table) &&
         f(Of<&A::modulation_index>(), s.modulation_index);
}

// All that a call has.
template <class Desc, class F>
FASTNORM_HOT constexpr bool for_each_tensor(Desc& d, const F& f) {
  return for_each_plain_tensor(d, f) && (!d.quant.any() || for_each_quant_tensor(d.quant, f)) &&
         (!d.has_stages || for_each_stage_tensor(d.stages, f));
}

// Tensors of a call; quant.scale counts twice.
inline constexpr size_t kMostNormTensors = std::popcount(schema::kTensors<fastnorm_norm_args>) +
                                           std::popcount(schema::kTensors<fastnorm_quant>) + 1;

static_assert(
    [] {
      uint64_t norm = 0, quant = 0;
      const auto visit = [&](auto of, const auto&) {
        using O = decltype(of);
        (std::is_same_v<typename O::Struct, fastnorm_quant> ? quant : norm) |= O::kBit;
        return true;
      };
      const NormDesc d;
      return for_each_plain_tensor(d, visit) && for_each_quant_tensor(d.quant, visit) &&
             for_each_stage_tensor(d.stages, visit) &&
             norm == schema::kTensors<fastnorm_norm_args> &&
             quant == schema::kTensors<fastnorm_quant>;
    }(),
    "a tensor of fields.csv is not above");

// The rows, and the weight, that a tensor has; nullptr if it has none.
FASTNORM_HOT RowTensor* rows_of(RowTensor& t) { return &t; }
FASTNORM_HOT RowTensor* rows_of(Modulator& m) { return &m.rows; }
template <class Tensor>
FASTNORM_HOT RowTensor* rows_of(const Tensor&) {
  return nullptr;
}
FASTNORM_HOT WeightTensor* weight_of(WeightTensor& t) { return &t; }
template <class Tensor>
FASTNORM_HOT WeightTensor* weight_of(const Tensor&) {
  return nullptr;
}

// Elements of a row of a tensor, or of a weight.
template <class Of>
FASTNORM_HOT int64_t columns_of(const NormDesc& d, Of) {
  using enum schema::Shape;
  switch (Of::kShape) {
    case kGroupWeight:
      return std::is_same_v<Of, schema::Of<&fastnorm_norm_args::bias>> ? d.bias_columns()
                                                                       : d.weight_columns();
    case kGroups:
      return d.groups();
    case kSums:
      return d.groups() * (d.kind == FASTNORM_NORM_LAYER ? 2 : 1);
    case kRow:
      return 1;
    case kCodes:
      return d.quant.code_bytes(d.n);
    case kScales:
      return d.quant.scales(d.n);
    case kSigns:
      return d.quant.sign_columns(d.n);
    default:
      return d.n;
  }
}

inline constexpr int64_t kSameForAllRows[kMaxOuter] = {};

// The rows of a weight or bias: one, or one for each index along which it varies.
FASTNORM_HOT RowBytes weight_bytes_of(const NormDesc& d, const WeightTensor& c, int64_t columns) {
  return {c.data, c.outer_stride_bytes, columns * dtype_bytes(c.dtype),
          c.head_stride_bytes != 0 ? d.outer[0] : 1, c.head_stride_bytes};
}

FASTNORM_HOT RowBytes scale_bytes_of(const NormDesc& d) {
  const QuantDesc& q = d.quant;
  const RowTensor& s = q.scale;
  if (q.swizzled) return {s.data, kSameForAllRows, q.swizzled_bytes(d.rows, d.n), 1, 0};
  return {s.data, s.stride_bytes, dtype_bytes(s.dtype), q.scales(d.n), q.scale_step_bytes};
}

// The rows of a modulator: those of x, or those that an index takes.
FASTNORM_HOT RowBytes modulator_bytes_of(const NormDesc& d, const Modulator& m) {
  const int64_t row_bytes = m.columns(d.n) * dtype_bytes(m.rows.dtype);
  return m.index_rows != 0
             ? RowBytes{m.rows.data, kSameForAllRows, row_bytes, m.index_rows, m.index_stride}
             : RowBytes{m.rows.data, m.rows.stride_bytes, row_bytes, 1, 0};
}

// The bytes of a tensor that is present.
template <class Of>
FASTNORM_HOT RowBytes bytes_of(const NormDesc& d, Of of, const RowTensor& t) {
  if constexpr (Of::kRole == schema::Role::kScales) return scale_bytes_of(d);
  return {t.data, t.stride_bytes, columns_of(d, of) * dtype_bytes(t.dtype), 1, 0};
}
template <class Of>
FASTNORM_HOT RowBytes bytes_of(const NormDesc& d, Of of, const WeightTensor& c) {
  return weight_bytes_of(d, c, columns_of(d, of));
}
template <class Of>
FASTNORM_HOT RowBytes bytes_of(const NormDesc& d, Of, const Modulator& m) {
  return modulator_bytes_of(d, m);
}
template <class Of>
FASTNORM_HOT RowBytes bytes_of(const NormDesc&, Of, const std::byte* scalar) {
  return {scalar, kSameForAllRows, 4, 1, 0};
}

}  // namespace fastnorm
