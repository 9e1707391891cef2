#include "core/norm_aliasing.h"

#include <cinttypes>

namespace fastnorm {
namespace {

// Inputs first, then outputs.
enum class Role { kX, kResidual, kGate, kWeight, kScalar, kY, kResidualOut, kStatistic, kQuant };

// A tensor of a call for the aliasing checks.
struct View {
  bool output() const { return role >= Role::kY; }

  const char* name;
  Role role;
  Dtype dtype;
  RowBytes bytes;
  AddressRange range;
};

constexpr int64_t kSameForAllRows[kMaxOuter] = {};

// The rows of a weight or bias: one, or one for each index along which it varies.
RowBytes weight_bytes_of(const NormDesc& d, const WeightTensor& c, int64_t columns) {
  return {c.data, c.outer_stride_bytes, columns * dtype_bytes(c.dtype),
          c.head_stride_bytes != 0 ? d.outer[0] : 1, c.head_stride_bytes};
}

RowBytes scale_bytes_of(const NormDesc& d) {
  const QuantDesc& q = d.quant;
  const RowTensor& s = q.scale;
  if (q.swizzled) return {s.data, kSameForAllRows, q.swizzled_bytes(d.rows, d.n), 1, 0};
  return {s.data, s.stride_bytes, dtype_bytes(s.dtype), q.scales(d.n), q.scale_step_bytes};
}

// Values of sumsq for one row.
int64_t sumsq_values(const NormDesc& d) {
  return d.stages.groups * (d.kind == FASTNORM_NORM_LAYER ? 2 : 1);
}

// The rows of a modulator: those of x, or those that an index takes.
RowBytes modulator_bytes_of(const NormDesc& d, const Modulator& m) {
  const int64_t row_bytes = m.columns(d.n) * dtype_bytes(m.rows.dtype);
  return m.index_rows != 0
             ? RowBytes{m.rows.data, kSameForAllRows, row_bytes, m.index_rows, m.index_stride}
             : RowBytes{m.rows.data, m.rows.stride_bytes, row_bytes, 1, 0};
}

// The tensors that a call has. A function that adds one returns false if its bytes do not fit in
// the address space.
class Views {
 public:
  explicit Views(const NormDesc& d) : d_(d) {}

  // Adds all tensors. If it returns false, the last view is the cause.
  bool collect() {
    const QuantDesc& q = d_.quant;
    return rows("x", Role::kX, d_.x, d_.n) &&
           rows("residual", Role::kResidual, d_.residual, d_.n) &&
           weight_or_bias("weight", d_.weight, d_.weight_columns()) &&
           weight_or_bias("bias", d_.bias, d_.bias_columns()) && rows("y", Role::kY, d_.y, d_.n) &&
           rows("residual_out", Role::kResidualOut, d_.residual_out, d_.n) &&
           rows("mean", Role::kStatistic, d_.mean, d_.groups()) &&
           rows("rstd", Role::kStatistic, d_.rstd, d_.groups()) && (!q.any() || quantised()) &&
           (!d_.has_stages || stages());
  }

  std::span<const View> all() const { return {view_, count_}; }

 private:
  bool stages() {
    const StagesDesc& s = d_.stages;
    return rows("gate", Role::kGate, s.gate, d_.n) &&
           rows("mean_in", Role::kScalar, s.mean_in, s.groups) &&
           rows("rstd_in", Role::kScalar, s.rstd_in, s.groups) &&
           rows("sumsq", Role::kStatistic, s.sumsq, sumsq_values(d_)) &&
           weight_or_bias("branch_weight", s.branch_weight, d_.n) &&
           weight_or_bias("branch_bias", s.branch_bias, d_.n) &&
           rows("branch_rstd", Role::kStatistic, s.branch_rstd, 1) &&
           scalar("sum_scale", Role::kScalar, s.sum_scale) &&
           modulator("residual_gate", "residual_gate_table", s.residual_gate) &&
           modulator("modulation_scale", "scale_table", s.modulation_scale) &&
           modulator("modulation_shift", "shift_table", s.modulation_shift) &&
           rows("modulation_index", Role::kScalar, s.modulation_index, 1);
  }

  bool modulator(const char* name, const char* table_name, const Modulator& m) {
    return !m || (add(name, Role::kWeight, m.rows.dtype, modulator_bytes_of(d_, m)) &&
                  weight_or_bias(table_name, m.table, d_.n));
  }

  bool quantised() {
    const QuantDesc& q = d_.quant;
    return rows("quantized", Role::kQuant, q.codes, q.code_bytes(d_.n)) && scale() &&
           scalar("scale", Role::kScalar, q.tensor_scale) &&
           scalar("global_scale", Role::kScalar, q.global_scale) &&
           scalar("clamp_scale", Role::kScalar, q.clamp_scale) &&
           scalar("amax", Role::kQuant, q.amax);
  }

  bool rows(const char* name, Role role, const RowTensor& t, int64_t columns) {
    const int64_t row_bytes = columns * dtype_bytes(t.dtype);
    return !t || add(name, role, t.dtype, {t.data, t.stride_bytes, row_bytes, 1, 0});
  }

  bool weight_or_bias(const char* name, const WeightTensor& c, int64_t columns) {
    return !c || add(name, Role::kWeight, c.dtype, weight_bytes_of(d_, c, columns));
  }

  bool scalar(const char* name, Role role, const std::byte* data) {
    return data == nullptr || add(name, role, Dtype::kF32, {data, kSameForAllRows, 4, 1, 0});
  }

  bool scale() {
    const RowTensor& s = d_.quant.scale;
    return !s || add("scale", Role::kQuant, s.dtype, scale_bytes_of(d_));
  }

  bool add(const char* name, Role role, Dtype dtype, const RowBytes& bytes) {
    View& v = view_[count_++];
    v.name = name;
    v.role = role;
    v.dtype = dtype;
    v.bytes = bytes;
    return address_range(v.bytes, d_.outer, &v.range, d_.outer_rank);
  }

  const NormDesc& d_;
  size_t count_ = 0;
  View view_[Touched::kMost];  // the first `count_` are set
};

// For tensors whose address ranges meet: true if they still share no byte.
bool interleaved(const RowBytes& a, const AddressRange& range_a, const NormDesc& of_a,
                 const RowBytes& b, const AddressRange& range_b, const NormDesc& of_b) {
  Footprint fa, fb;
  footprint(a, of_a.outer, range_a, &fa);
  footprint(b, of_b.outer, range_b, &fb);
  return disjoint(fa, fb);
}

FASTNORM_HOT bool same_view(const RowTensor& a, const RowTensor& b, const NormDesc& d) {
  if (a.data != b.data || a.dtype != b.dtype) return false;
  for (int i = 0; i < d.outer_rank; ++i) {
    if (d.outer[i] != 1 && a.stride_bytes[i] != b.stride_bytes[i]) return false;
  }
  return true;
}

// Checks an output against a tensor whose address range meets its own.
fastnorm_status check_overlap(const View& out, const View& other, const NormDesc& d, Error& error) {
  // Only these may be the same view. On every backend, the thread that writes an element has
  // already read it from x, residual and gate.
  const bool gated = out.role == Role::kY && other.role == Role::kGate;
  const bool pair = gated || ((out.role == Role::kY || out.role == Role::kResidualOut) &&
                              (other.role == Role::kX || other.role == Role::kResidual));
  const RowTensor& input = gated ? d.stages.gate : other.role == Role::kX ? d.x : d.residual;
  const bool in_place = pair && same_view(out.role == Role::kY ? d.y : d.residual_out, input, d);
  FASTNORM_REQUIRE(in_place || interleaved(out.bytes, out.range, d, other.bytes, other.range, d),
                   FASTNORM_ERROR_LAYOUT,
                   "%s [0x%" PRIxPTR ", 0x%" PRIxPTR ") overlaps %s [0x%" PRIxPTR ", 0x%" PRIxPTR
                   "); required: %s, separate memory, or interleaved views that share no element",
                   out.name, out.range.begin, out.range.end, other.name, other.range.begin,
                   other.range.end,
                   !pair ? "two tensors" : "the same view (address, dtype, strides)");
  return FASTNORM_OK;
}

// A gate that overlaps x is most likely a mistake, although both are only read.
fastnorm_status check_gate(std::span<const View> views, const NormDesc& d, Error& error) {
  const View& x = views.front();
  for (const View& gate : views) {
    if (gate.role != Role::kGate || separate(x.range, gate.range)) continue;
    FASTNORM_REQUIRE(interleaved(x.bytes, x.range, d, gate.bytes, gate.range, d),
                     FASTNORM_ERROR_LAYOUT,
                     "gate [0x%" PRIxPTR ", 0x%" PRIxPTR ") overlaps x [0x%" PRIxPTR ", 0x%" PRIxPTR
                     "); required: two tensors, separate memory, or interleaved views that share "
                     "no element",
                     gate.range.begin, gate.range.end, x.range.begin, x.range.end);
  }
  return FASTNORM_OK;
}

}  // namespace

bool Touched::collect(const NormDesc& d) {
  size_t count = 0;
  // Inline, so that the parts of `bytes` stay in registers. Otherwise they are read back in pairs
  // right after they are written.
  const auto add = [&](const RowBytes& bytes) __attribute__((always_inline)) {
    bytes_[count] = bytes;
    return address_range(bytes, d.outer, &range_[count++], d.outer_rank);
  };
  const auto rows = [&](const RowTensor& t, int64_t columns) {
    return !t || add({t.data, t.stride_bytes, columns * dtype_bytes(t.dtype), 1, 0});
  };
  // The same bytes for all rows: at most 2^34.
  const auto piece = [&](const std::byte* data, int64_t bytes) __attribute__((always_inline)) {
    bytes_[count] = {data, kSameForAllRows, bytes, 1, 0};
    AddressRange& range = range_[count++];
    range.begin = reinterpret_cast<uintptr_t>(data);
    return !__builtin_add_overflow(range.begin, static_cast<uintptr_t>(bytes), &range.end);
  };
  const auto weights = [&](const WeightTensor& c, int64_t n) {
    if (!c) return true;
    return (c.head_stride_bytes | c.outer_stride_bytes[1] | c.outer_stride_bytes[2]) == 0
               ? piece(c.data, n * dtype_bytes(c.dtype))
               : add(weight_bytes_of(d, c, n));
  };
  const auto scalar = [&](const std::byte* data) { return data == nullptr || piece(data, 4); };
  const QuantDesc& q = d.quant;
  const bool quant = q.any();
  // If an output overwrites a tensor in place, only the output counts.
  const auto overwritten = [&](const RowTensor& t) {
    return same_view(t, d.y, d) || same_view(t, d.residual_out, d);
  };
  bool fit = overwritten(d.x) || rows(d.x, d.n);
  if (d.residual) fit = fit && (overwritten(d.residual) || rows(d.residual, d.n));
  fit = fit && weights(d.weight, d.weight_columns()) && weights(d.bias, d.bias_columns());
  const StagesDesc& stages = d.stages;
  if (d.has_stages) {
    fit = fit && (!stages.gate || same_view(stages.gate, d.y, d) || rows(stages.gate, d.n)) &&
          rows(stages.mean_in, stages.groups) && rows(stages.rstd_in, stages.groups) &&
          weights(stages.branch_weight, d.n) && weights(stages.branch_bias, d.n) &&
          scalar(stages.sum_scale) && rows(stages.modulation_index, 1);
    for (const Modulator* m :
         {&stages.residual_gate, &stages.modulation_scale, &stages.modulation_shift})
      fit = fit && (!*m || (add(modulator_bytes_of(d, *m)) && weights(m->table, d.n)));
  }
  if (quant) fit = fit && scalar(q.tensor_scale) && scalar(q.global_scale) && scalar(q.clamp_scale);
  inputs_ = count;
  fit = fit && rows(d.y, d.n) && rows(d.residual_out, d.n) && rows(d.mean, d.groups()) &&
        rows(d.rstd, d.groups());
  if (d.has_stages) fit = fit && rows(stages.sumsq, sumsq_values(d)) && rows(stages.branch_rstd, 1);
  if (quant) {
    fit = fit && rows(q.codes, q.code_bytes(d.n)) && (!q.scale || add(scale_bytes_of(d))) &&
          scalar(q.amax);
  }
  count_ = count;
  return fit;
}

fastnorm_status check_aliasing(const NormDesc& desc, Error& error) {
  Views views(desc);
  FASTNORM_REQUIRE(views.collect(), FASTNORM_ERROR_LAYOUT,
                   "%s's strides reach past the ends of the address space, or over more than 2^62 "
                   "bytes; required: strides in elements of memory that exists",
                   views.all().back().name);
  if (desc.has_stages && desc.stages.gate) FASTNORM_TRY(check_gate(views.all(), desc, error));
  for (const View& out : views.all()) {
    if (!out.output()) continue;
    for (const View& other : views.all()) {
      if (other.output() && &other >= &out) continue;
      if (!separate(out.range, other.range)) FASTNORM_TRY(check_overlap(out, other, desc, error));
    }
  }
  return FASTNORM_OK;
}

fastnorm_status check_scattered_rows(const char* name, const RowTensor& row, int64_t row_bytes,
                                     const NormDesc& desc, Error& error) {
  Footprint f;
  FASTNORM_REQUIRE(footprint(row, desc.outer, row_bytes, &f) && rows_disjoint(f),
                   FASTNORM_ERROR_LAYOUT,
                   "%s overlaps itself: its strides are %s bytes for rows of %" PRId64
                   " bytes, innermost first; required: "
                   "rows of an output that share no byte",
                   name, shape_text(row.stride_bytes, desc.outer_rank).c, row_bytes);
  return FASTNORM_OK;
}

bool Touched::apart() const {
  for (size_t out = inputs_; out < count_; ++out) {
    for (size_t other = 0; other < out; ++other) {
      if (!separate(range_[out], range_[other])) return false;
    }
  }
  return true;
}

bool Touched::apart(const NormDesc& mine, const Touched& t, const NormDesc& theirs) const {
  for (size_t i = 0; i < count_; ++i) {
    for (size_t j = i < inputs_ ? t.inputs_ : 0; j < t.count_; ++j) {
      if (!separate(range_[i], t.range_[j]) &&
          !take_turns(bytes_[i], mine.outer, t.bytes_[j], theirs.outer) &&
          !interleaved(bytes_[i], range_[i], mine, t.bytes_[j], t.range_[j], theirs)) {
        return false;
      }
    }
  }
  return true;
}

fastnorm_status check_norm_many(std::span<const NormDesc> descs, std::span<const Touched> touched,
                                Error& error) {
  bool apart = true;
  for (size_t i = 1; i < descs.size(); ++i) {
    for (size_t j = 0; j < i && descs[i].rows != 0; ++j)
      apart = apart && (descs[j].rows == 0 || touched[j].apart(descs[j], touched[i], descs[i]));
  }
  return apart ? FASTNORM_OK : check_norm_many(descs, error);
}

fastnorm_status check_norm_many(std::span<const NormDesc> descs, Error& error) {
  for (size_t i = 0; i + 1 < descs.size(); ++i) {
    const NormDesc& a = descs[i];
    if (a.rows == 0) continue;
    Views views_a(a);
    views_a.collect();  // it passed this check before
    for (size_t j = i + 1; j < descs.size(); ++j) {
      const NormDesc& b = descs[j];
      if (b.rows == 0) continue;
      Views views_b(b);
      views_b.collect();
      for (const View& va : views_a.all()) {
        for (const View& vb : views_b.all()) {
          if (!va.output() && !vb.output()) continue;
          FASTNORM_REQUIRE(
              separate(va.range, vb.range) ||
                  interleaved(va.bytes, va.range, a, vb.bytes, vb.range, b),
              FASTNORM_ERROR_LAYOUT,
              "args[%zu].%s [0x%" PRIxPTR ", 0x%" PRIxPTR ") overlaps args[%zu].%s [0x%" PRIxPTR
              ", 0x%" PRIxPTR "); required: no part touches what another one writes",
              i, va.name, va.range.begin, va.range.end, j, vb.name, vb.range.begin, vb.range.end);
        }
      }
    }
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
