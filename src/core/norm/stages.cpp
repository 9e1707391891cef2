#include "core/norm/stages.h"

#include <cinttypes>

#include "core/common/check.h"
#include "core/norm/plan.h"

namespace fastnorm {
namespace {

// The general kernel of `dtype` with the fewest threads, or with the most; -1: there is none.
int32_t find_general(const StagesKernelList& list, Dtype dtype, bool fewest) {
  int32_t best = -1;
  for (int32_t i = 0; i < list.count; ++i) {
    const StagesVariant& v = list.entries[i].variant;
    if (v.dtype != dtype || v.is_held()) continue;
    if (best < 0 || (v.threads < list.entries[best].variant.threads) == fewest) best = i;
  }
  return best;
}

// Collects whether tensors have x's dtype, of 16 bits, and are multiples of 16 bytes: addresses,
// strides and lengths.
class Alignment {
 public:
  explicit Alignment(const NormDesc& d)
      : d_(d),
        own_(d.dtype != Dtype::kF32),
        bits_(static_cast<uint64_t>(d.stages.group * dtype_bytes(d.dtype))) {}

  Alignment& rows(const RowTensor& t) {
    if (!t) return *this;
    own_ = own_ && t.dtype == d_.dtype;
    return places(t);
  }
  // One row for all.
  Alignment& weight(const WeightTensor& w) {
    if (!w) return *this;
    own_ = own_ && w.dtype == d_.dtype;
    bits_ |= reinterpret_cast<uintptr_t>(w.data);
    for (int i = 0; i < kMaxOuter; ++i) own_ = own_ && w.stride_bytes(i) == 0;
    return *this;
  }
  // Rows of n elements, of x's dtype or f32 as the table.
  Alignment& modulator(const Modulator& m) {
    if (!m) return *this;
    own_ = own_ && !m.single && is_own_or_f32(m.rows.dtype) &&
           (!m.table || is_own_or_f32(m.table.dtype));
    bits_ |= static_cast<uint64_t>(m.index_stride) | reinterpret_cast<uintptr_t>(m.table.data);
    return places(m.rows);
  }
  explicit operator bool() const { return own_ && bits_ % kVectorBytes == 0; }

 private:
  bool is_own_or_f32(Dtype dtype) const { return dtype == d_.dtype || dtype == Dtype::kF32; }
  Alignment& places(const RowTensor& t) {
    bits_ |= address_bits(t.data, t.stride_bytes);
    return *this;
  }

  const NormDesc& d_;
  bool own_;
  uint64_t bits_;
};

bool is_aligned(const NormDesc& d) {
  const StagesDesc& s = d.stages;
  Alignment all(d);
  all.rows(d.x).rows(d.residual).rows(s.gate).rows(d.y).rows(d.residual_out);
  all.weight(d.weight).weight(s.branch_weight);
  all.modulator(s.residual_gate).modulator(s.modulation_scale).modulator(s.modulation_shift);
  return static_cast<bool>(all);
}

bool rounds_rows_alone(fastnorm_rounding rounding) {
  return rounding == FASTNORM_ROUND_ONCE || rounding == FASTNORM_ROUND_NORMALIZED;
}

bool has_stage(const NormDesc& d) {
  const StagesDesc& s = d.stages;
  return s.gate || s.activation != FASTNORM_ACTIVATION_IDENTITY || s.branch || s.scaled ||
         s.sum_scale != nullptr || s.sum_every_step || s.residual_gate || s.modulates() ||
         s.rstd_in || s.sumsq || s.groups != 1;
}

// The form of a call that rotates.
StagesForm rotated_form(const NormDesc& d) {
  const QuantDesc& q = d.quant;
  const bool held = !has_stage(d) && rounds_rows_alone(d.rounding) &&
                    d.residual_rounding != FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY &&
                    d.kind == FASTNORM_NORM_RMS && !d.bias && codes_aligned(d) && is_aligned(d) &&
                    reinterpret_cast<uintptr_t>(q.signs.data) % kVectorBytes == 0;
  if (!held) return StagesForm::kGeneral;
  const bool lean = d.weight && !d.y && d.outer_rank == 1 && !q.has_extras() &&
                    d.rounding == FASTNORM_ROUND_ONCE &&
                    d.residual_rounding == FASTNORM_RESIDUAL_EXACT;
  if (d.residual) return lean ? StagesForm::kRotatedLeanSum : StagesForm::kRotatedSum;
  return lean ? StagesForm::kRotatedLean : StagesForm::kRotated;
}

// The form that serves what a lean form does, and more.
StagesForm full_form(StagesForm form) {
  return form == StagesForm::kRotatedLean      ? StagesForm::kRotated
         : form == StagesForm::kRotatedLeanSum ? StagesForm::kRotatedSum
                                               : form;
}

// The form that computes what `desc` asks for, if a kernel of it holds the rows.
StagesForm form_of(const NormDesc& d) {
  const StagesDesc& s = d.stages;
  constexpr int64_t kMostRows = int64_t{0xffffff00};  // of groups
  if (d.quant.rotation != 0) return rotated_form(d);
  const bool plain = rounds_rows_alone(d.rounding) && d.y && !d.quant.any() && !d.bias &&
                     s.activation == FASTNORM_ACTIVATION_IDENTITY && !s.rstd_in && !s.sumsq &&
                     d.rows <= kMostRows / s.groups && is_aligned(d);
  if (!plain) return StagesForm::kGeneral;
  const bool sum_is_held =
      !d.residual || d.residual_rounding == FASTNORM_RESIDUAL_EXACT ||
      (d.residual_rounding == FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS && d.sum_dtype == d.dtype);
  if (s.residual_gate || s.modulates()) {
    const bool rounds_steps = s.sum_every_step || s.modulation_every_step;
    const bool modulated = !s.gate && !s.branch && s.groups == 1 && !s.sum_scale &&
                           s.residual_gate_act == FASTNORM_ACTIVATION_IDENTITY && sum_is_held &&
                           (!has_mixed_modulators(d) || !rounds_steps);
    return modulated ? StagesForm::kModulated : StagesForm::kGeneral;
  }
  if (d.kind != FASTNORM_NORM_RMS) return StagesForm::kGeneral;
  const bool sums = d.residual || s.scaled || s.sum_scale != nullptr || s.sum_every_step;
  const bool gates = s.gate && s.gate_act != FASTNORM_ACTIVATION_TANH &&
                     (!s.gate_before || d.rounding == FASTNORM_ROUND_ONCE);
  if (gates && !s.branch && !sums) return StagesForm::kGated;
  const bool branch = s.branch && s.branch_kind == FASTNORM_NORM_RMS && !s.branch_bias &&
                      rounds_rows_alone(s.branch_rounding);
  if (branch && d.residual && sum_is_held && !s.gate && s.groups == 1) return StagesForm::kSandwich;
  return StagesForm::kGeneral;
}

int64_t group_vectors(const NormDesc& d) {
  return d.stages.group * dtype_bytes(d.dtype) / kVectorBytes;
}

// True if a kernel of a form holds the rows.
bool holds(const StagesVariant& v, const NormDesc& d, StagesForm form) {
  return v.dtype == d.dtype && v.form == form && group_vectors(d) <= v.vectors_held();
}

// True if a kernel computes what `desc` asks for.
bool serves(const StagesVariant& v, const NormDesc& d) {
  if (!v.is_held()) return v.dtype == d.dtype;
  const StagesForm form = form_of(d);
  return holds(v, d, form) || holds(v, d, full_form(form));
}

// The kernel that holds the rows: for many rows the one with the fewest threads, for few rows the
// one with the most, whose vectors come together.
int32_t find_held(const NormDesc& d, const DeviceFacts& facts, StagesForm form) {
  const StagesKernelList& list = *facts.arch->stages;
  if (form == StagesForm::kGeneral) return -1;
  const bool few = d.rows * d.stages.groups <= facts.multiprocessors;
  int32_t best = -1;
  for (int32_t i = 0; i < list.count; ++i) {
    const StagesVariant& v = list.entries[i].variant;
    if (!holds(v, d, form)) continue;
    if (best < 0) best = i;
    const StagesVariant& b = list.entries[best].variant;
    // A kernel with vectors that no row reaches into is for longer rows.
    const bool needs = group_vectors(d) > v.vectors_held() - v.threads;
    const bool best_needs = group_vectors(d) > b.vectors_held() - b.threads;
    const bool better =
        few ? v.vectors < b.vectors || (v.vectors == b.vectors && v.threads < b.threads)
            : v.threads < b.threads || (v.threads == b.threads && v.vectors < b.vectors);
    if ((needs && !best_needs) || (needs == best_needs && better)) best = i;
  }
  return best;
}

fastnorm_status plan_on(const NormDesc& d, const DeviceFacts& facts, int32_t index, NormPlan* plan,
                        Error& error) {
  const StagesEntry& entry = facts.arch->stages->entries[index];
  constexpr int64_t kMostColumns = UINT32_MAX;  // column numbers are 32 bits wide on the device
  FASTNORM_REQUIRE(d.n <= kMostColumns, FASTNORM_ERROR_UNSUPPORTED,
                   "x has rows of %" PRId64
                   " elements and a stage or a rotation is given; on CUDA such a "
                   "call takes %" PRId64 "; nearest: a CPU context, or neither",
                   d.n, kMostColumns);
  const int64_t rows = entry.variant.is_held() ? d.rows * d.stages.groups : d.rows;
  plan->index = index;
  plan->entry = &entry;
  plan->rows_per_block = rows_per_block(entry.tile);
  plan->blocks = static_cast<uint64_t>((rows + plan->rows_per_block - 1) / plan->rows_per_block);
  return check_grid(d, plan->blocks, *facts.arch, error);
}

}  // namespace

bool has_mixed_modulators(const NormDesc& d) {
  const auto mixed = [&](const Modulator& m) { return m && (m.rows.dtype != d.dtype || m.table); };
  const StagesDesc& s = d.stages;
  return mixed(s.residual_gate) || mixed(s.modulation_scale) || mixed(s.modulation_shift);
}

fastnorm_status plan_stages_cuda(const NormDesc& d, const DeviceFacts& facts, NormPlan* plan,
                                 Error& error) {
  const StagesForm form = form_of(d);
  int32_t index = find_held(d, facts, form);
  if (index < 0) index = find_held(d, facts, full_form(form));
  if (index < 0) {
    const bool fits_warp = d.n * dtype_bytes(d.dtype) <= kWarpRowBytes;
    index = find_general(*facts.arch->stages, d.dtype, fits_warp);
  }
  FASTNORM_REQUIRE(index >= 0, FASTNORM_ERROR_INTERNAL, "no kernel for stages of %s",
                   dtype_name(d.dtype));
  return plan_on(d, facts, index, plan, error);
}

fastnorm_status plan_stages_for(const NormDesc& d, const DeviceFacts& facts, int32_t index,
                                NormPlan* plan, Error& error) {
  const StagesEntry& entry = facts.arch->stages->entries[index];
  FASTNORM_REQUIRE(d.rows > 0 && d.has_stages && serves(entry.variant, d),
                   FASTNORM_ERROR_UNSUPPORTED, "kernel \"%s\" does not serve this call",
                   entry.name);
  // The totals are those of any kernel.
  FASTNORM_TRY(make_plan(d, facts, {}, plan, error));
  return plan_on(d, facts, index, plan, error);
}

}  // namespace fastnorm
