#include "core/norm_backward/cpu_plan.h"

#include <algorithm>

#include "core/common/check.h"
#include "core/common/grain.h"
#include "core/norm_backward/rows.h"
#include "core/norm_backward/tensors.h"

namespace fastnorm {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Distinct rows of a tensor.
uint64_t distinct(const NormBackwardDesc& d, const int64_t (&stride_bytes)[kMaxOuter]) {
  uint64_t rows = 1;
  for (int i = 0; i < kMaxOuter; ++i) {
    if (stride_bytes[i] != 0) rows *= static_cast<uint64_t>(d.outer[i]);
  }
  return rows;
}

// True if an input is read. What no output needs of a branch, its check has dropped.
template <class Of>
bool is_read(const NormBackwardDesc& d, Of) {
  using A = fastnorm_norm_backward_args;
  switch (Of::kBit) {
    case schema::Of<&A::x>::kBit:
    case schema::Of<&A::mean>::kBit:
    case schema::Of<&A::rstd>::kBit:
      return d.needs_statistics();
    case schema::Of<&A::weight>::kBit:
    case schema::Of<&A::dresidual_in>::kBit:
      return d.needs_gradient();
    default:
      return true;
  }
}

// True if a sum is added to its old value, which is read.
template <class Of>
bool accumulates(const NormBackwardDesc& d, Of) {
  using A = fastnorm_norm_backward_args;
  switch (Of::kBit) {
    case schema::Of<&A::dweight>::kBit:
      return d.accumulate_dweight;
    case schema::Of<&A::dbias>::kBit:
      return d.accumulate_dbias;
    case schema::Of<&A::dbranch_weight>::kBit:
      return d.branch.accumulate_dweight;
    case schema::Of<&A::dbranch_bias>::kBit:
      return d.branch.accumulate_dbias;
    case schema::Of<&A::dresidual_gate>::kBit:
      return d.branch.accumulate_dresidual_gate;
    default:
      return false;
  }
}

// The table entries and positions that tokens need.
uint64_t rope_bytes(const NormBackwardDesc& d) {
  const NormBackwardHeads& h = d.of_heads;
  if (!h.rope || d.rows == 0) return 0;
  const RopeTables& t = h.tables;
  const int64_t tokens = d.rows / h.heads, tables = t.cos.head_stride != 0 ? h.heads : 1;
  const int64_t entries = tables * tokens * t.rope_dim;  // R cosines and R sines
  const int64_t positions = t.positions ? tokens * t.axes * (t.positions.wide ? 8 : 4) : 0;
  return static_cast<uint64_t>(entries * dtype_bytes(t.table_dtype) + positions);
}

}  // namespace

NormBackwardUnits norm_backward_units(const NormBackwardDesc& d) {
  int64_t count = d.rows, rows = 1;
  if (d.has_sums() && d.rows != 0) {
    const NormBackwardRows order = norm_backward_rows(d.shared_rows, d.n);
    count = d.groups * order.blocks;
    rows = ceil_div(d.shared_rows, order.blocks);
  }
  // Both factors may be large.
  const int64_t grain = rows >= kNormBackwardGrain || d.n >= kNormBackwardGrain
                            ? 1
                            : ceil_div(kNormBackwardGrain, rows * d.n);
  return {count, grain};
}

int64_t norm_backward_tokens(const NormBackwardDesc& d) {
  const NormBackwardHeads& h = d.of_heads;
  return h.across_heads && d.needs_statistics() ? d.rows / h.heads : 0;
}

int64_t norm_backward_token_grain(const NormBackwardDesc& d) {
  const int64_t columns = d.of_heads.heads * d.n;
  return columns >= kNormBackwardGrain ? 1 : ceil_div(kNormBackwardGrain, columns);
}

void count_norm_backward_bytes(const NormBackwardDesc& d, NormBackwardPlan* plan) {
  plan->bytes_read = rope_bytes(d);
  plan->bytes_written = 0;
  for_each_backward_tensor(d, [&](auto of, const auto& t) {
    if (!t) return true;
    auto bytes = static_cast<uint64_t>(row_bytes_of(d, of, t));
    if constexpr (kHasStrides<std::remove_cvref_t<decltype(t)>>)
      bytes *= distinct(d, t.stride_bytes);
    constexpr bool kOutput = decltype(of)::kOutput;
    if (kOutput) plan->bytes_written += bytes;
    if (kOutput ? accumulates(d, of) : is_read(d, of)) plan->bytes_read += bytes;
    return true;
  });
}

fastnorm_status plan_norm_backward_cpu(const NormBackwardDesc& d, const DeviceFacts& facts,
                                       NormBackwardPlan* plan, Error&) {
  *plan = {};
  const int kind = d.kind == FASTNORM_NORM_LAYER ? 1 : 0;
  plan->kernel = kNormBackwardCpuNames[kind * kRowDtypes + static_cast<int>(d.x.dtype)];
  plan->launches = 1;
  count_norm_backward_bytes(d, plan);
  if (d.rows == 0) {
    plan->blocks = 1;
    return FASTNORM_OK;
  }
  const NormBackwardRows order = norm_backward_rows(d.shared_rows, d.n);
  plan->lanes = static_cast<int32_t>(order.lanes);
  plan->row_blocks = static_cast<int32_t>(order.blocks);
  plan->partial_stride = norm_backward_partial_stride(d.n);
  const auto sum_bytes = static_cast<uint64_t>(d.groups * order.blocks) *
                         static_cast<uint64_t>(plan->partial_stride) * sizeof(float);
  const auto sums = sums_of(d);
  for (size_t i = 0; i < sums.size(); ++i) {
    plan->partial_offset[i] = plan->workspace_bytes;
    if (*sums[i]) plan->workspace_bytes += sum_bytes;
  }
  if (const int64_t tokens = norm_backward_tokens(d); tokens != 0) {
    plan->token_values_offset = plan->workspace_bytes;
    plan->workspace_bytes += static_cast<uint64_t>(tokens * kTokenValues) * sizeof(float);
  }
  const NormBackwardUnits units = norm_backward_units(d);
  plan->blocks = static_cast<uint64_t>(
      std::min<int64_t>(facts.threads, std::max<int64_t>(1, units.count / units.grain)));
  return FASTNORM_OK;
}

}  // namespace fastnorm
