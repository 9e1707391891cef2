#include "core/norm_stages.h"

#include <cinttypes>

#include "core/check.h"
#include "core/norm_plan.h"

namespace fastnorm {
namespace {

// The general kernels: a warp has a row up to this many bytes, a block has a longer one.
constexpr int64_t kWarpRowBytes = 2048;
constexpr int16_t kWarp = 32, kBlock = 256;

int32_t find_kernel(const StagesKernelList& list, Dtype dtype, StagesForm form, int threads) {
  for (int32_t i = 0; i < list.count; ++i) {
    const StagesVariant& v = list.entries[i].variant;
    if (v.dtype == dtype && v.form == form && v.threads == threads) return i;
  }
  return -1;
}

// True if all rows and weights have x's dtype, of 16 bits, and groups are aligned: their addresses,
// strides and lengths are multiples of 16 bytes.
bool is_aligned(const NormDesc& d) {
  const StagesDesc& s = d.stages;
  auto bits = static_cast<uint64_t>(s.group * dtype_bytes(d.dtype));
  bool own = d.dtype != Dtype::kF32;
  for (const RowTensor* t : {&d.x, &d.residual, &s.gate, &d.y, &d.residual_out}) {
    if (!*t) continue;
    own = own && t->dtype == d.dtype;
    bits |= reinterpret_cast<uintptr_t>(t->data);
    for (int i = 0; i < d.outer_rank; ++i) bits |= static_cast<uint64_t>(t->stride_bytes[i]);
  }
  for (const WeightTensor* w : {&d.weight, &s.branch_weight}) {
    if (!*w) continue;
    own = own && w->dtype == d.dtype;
    bits |= reinterpret_cast<uintptr_t>(w->data);
    // All rows have the same.
    for (int i = 0; i < kMaxOuter; ++i) own = own && w->stride_bytes(i) == 0;
  }
  return own && bits % kVectorBytes == 0;
}

bool rounds_rows_alone(fastnorm_rounding rounding) {
  return rounding == FASTNORM_ROUND_ONCE || rounding == FASTNORM_ROUND_NORMALIZED;
}

// The form that computes what `desc` asks for, if a kernel of it holds the rows.
StagesForm form_of(const NormDesc& d) {
  const StagesDesc& s = d.stages;
  constexpr int64_t kMostRows = int64_t{0xffffff00};  // of groups
  const bool plain = d.kind == FASTNORM_NORM_RMS && rounds_rows_alone(d.rounding) && d.y &&
                     !d.quant.any() && !d.bias && s.activation == FASTNORM_ACTIVATION_IDENTITY &&
                     !s.rstd_in && !s.sumsq && d.rows <= kMostRows / s.groups && is_aligned(d);
  if (!plain) return StagesForm::kGeneral;
  const bool sums = d.residual || s.scaled || s.sum_scale != nullptr || s.sum_every_step;
  const bool gates = s.gate && !s.gate_before && s.gate_act != FASTNORM_ACTIVATION_TANH;
  if (gates && !s.branch && !sums) return StagesForm::kGated;
  const bool sum_is_held =
      d.residual && (d.residual_rounding == FASTNORM_RESIDUAL_EXACT ||
                     (d.residual_rounding == FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS &&
                      d.sum_dtype == d.dtype));
  const bool branch = s.branch && s.branch_kind == FASTNORM_NORM_RMS && !s.branch_bias &&
                      rounds_rows_alone(s.branch_rounding);
  if (branch && sum_is_held && !s.gate && s.groups == 1) return StagesForm::kSandwich;
  return StagesForm::kGeneral;
}

int64_t group_vectors(const NormDesc& d) {
  return d.stages.group * dtype_bytes(d.dtype) / kVectorBytes;
}

// True if a kernel computes what `desc` asks for.
bool serves(const StagesVariant& v, const NormDesc& d) {
  if (v.dtype != d.dtype) return false;
  return !v.is_held() || (v.form == form_of(d) && group_vectors(d) <= v.vectors_held());
}

// Of those that hold the rows: for many rows that with the fewest threads, of few rows the one with
// the most, whose vectors come together.
int32_t find_held(const NormDesc& d, const DeviceFacts& facts) {
  const StagesKernelList& list = *facts.arch->stages;
  if (form_of(d) == StagesForm::kGeneral) return -1;
  const bool few = d.rows * d.stages.groups <= facts.multiprocessors;
  int32_t best = -1;
  for (int32_t i = 0; i < list.count; ++i) {
    const StagesVariant& v = list.entries[i].variant;
    if (!v.is_held() || !serves(v, d)) continue;
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
  const StagesDesc& s = d.stages;
  FASTNORM_REQUIRE(!s.residual_gate && !s.modulates(), FASTNORM_ERROR_UNSUPPORTED,
                   "the context's device is CUDA:%d and residual_gate, modulation_scale or "
                   "modulation_shift is given; this version has them on the CPU; nearest: a CPU "
                   "context, or a call without them",
                   facts.device_id);
  const StagesEntry& entry = facts.arch->stages->entries[index];
  constexpr int64_t kMostColumns = UINT32_MAX;  // column numbers are 32 bits wide on the device
  FASTNORM_REQUIRE(d.n <= kMostColumns, FASTNORM_ERROR_UNSUPPORTED,
                   "x has rows of %" PRId64
                   " elements and a stage is given; on CUDA a call with stages "
                   "takes %" PRId64 "; nearest: a CPU context, or no stage",
                   d.n, kMostColumns);
  const int64_t rows = entry.variant.is_held() ? d.rows * d.stages.groups : d.rows;
  plan->index = index;
  plan->entry = &entry.norm;
  plan->rows_per_block = rows_per_block(entry.norm.tile);
  plan->blocks = static_cast<uint64_t>((rows + plan->rows_per_block - 1) / plan->rows_per_block);
  return check_grid(d, plan->blocks, *facts.arch, error);
}

}  // namespace

fastnorm_status plan_stages_cuda(const NormDesc& d, const DeviceFacts& facts, NormPlan* plan,
                                 Error& error) {
  int32_t index = find_held(d, facts);
  if (index < 0) {
    const bool warp = d.n * dtype_bytes(d.dtype) <= kWarpRowBytes;
    index = find_kernel(*facts.arch->stages, d.dtype, StagesForm::kGeneral, warp ? kWarp : kBlock);
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
                   entry.norm.name);
  // The totals are those of any kernel.
  FASTNORM_TRY(make_plan(d, facts, {}, plan, error));
  return plan_on(d, facts, index, plan, error);
}

}  // namespace fastnorm
