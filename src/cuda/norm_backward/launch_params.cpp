#include "cuda/norm_backward/launch_params.h"

#include <algorithm>
#include <bit>

#include "core/norm_backward/rows.h"
#include "cuda/norm/launch_params.h"

namespace fastnorm::cuda {
namespace {

// The digits of a row's number that have more than one value: divisors want no others.
struct Digits {
  int32_t count = 0;
  int of[kMaxOuter] = {};
  int64_t extent[kMaxOuter] = {};
};

Digits digits_of(const NormBackwardDesc& d) {
  Digits digits;
  for (int i = 0; i < d.outer_rank; ++i) {
    // Without rows there are groups all the same, and no digit counts rows of one.
    if (d.outer[i] <= 1 || (d.shared_rows == 0 && i < d.shared_rank)) continue;
    digits.of[digits.count] = i;
    digits.extent[digits.count++] = d.outer[i];
  }
  if (digits.count == 0) digits.extent[digits.count++] = 1;
  return digits;
}

BackwardTensor tensor_of(const std::byte* data, const int64_t (&strides)[kMaxOuter], Dtype dtype,
                         const Digits& digits) {
  BackwardTensor t = {kernel_pointer(data), {0, 0, 0}, dtype};
  for (int i = 0; i < digits.count; ++i) t.stride[i] = strides[digits.of[i]];
  return t;
}

// `count` values for each row, one after another.
BackwardTensor values_in(char* data, const Digits& digits, int64_t count = 1) {
  BackwardTensor t = {data, {0, 0, 0}, Dtype::kF32};
  int64_t stride = count * int64_t{sizeof(float)};
  for (int i = 0; i < digits.count; ++i) {
    t.stride[i] = stride;
    stride *= digits.extent[i];
  }
  return t;
}

// True if 16-byte loads reach the weight's rows, which are of x's dtype or f32; or there is none.
bool has_plain_weight(const NormBackwardDesc& d) {
  if (!d.weight) return true;
  return address_bits(d.weight.data, d.weight.stride_bytes) % 16 == 0 &&
         (d.weight.dtype == d.dtype || d.weight.dtype == Dtype::kF32);
}

// True if a product of 32-bit numbers leads to each row of a group: the rows have one digit at the
// most, and narrow strides.
bool has_even_rows(const NormBackwardDesc& d, const Digits& digits, const NormBackwardParams& p) {
  if (digits.count > 1 && digits.of[1] < d.shared_rank) return false;
  const auto tensors = {&p.x,    &p.dy,    &p.dresidual_in,  &p.dx,
                        &p.gate, &p.dgate, &p.branch.branch, &p.branch.dbranch,
                        &p.rstd, &p.mean,  &p.branch.rstd};
  return std::ranges::all_of(tensors, [](const BackwardTensor* t) {
    return t->stride[0] == static_cast<int32_t>(t->stride[0]);
  });
}

NormParams forward_params(const NormBackwardDesc& d, const Digits& digits) {
  NormDesc forward = forward_of(d, d.x.dtype);
  forward.outer_rank = digits.count;
  for (int i = 0; i < digits.count; ++i) {
    forward.outer[i] = digits.extent[i];
    forward.x.stride_bytes[i] = d.x.stride_bytes[digits.of[i]];
  }
  return make_general_params(forward, Sink::kStore);
}

void set_branch(const NormBackwardDesc& d, const NormBackwardPlan& plan, const Digits& digits,
                char* workspace, NormBackwardParams* p) {
  const NormBackwardBranch& b = d.branch;
  BackwardBranch& to = p->branch;
  const auto set = [&](BackwardTensor& t, const auto& from) {
    t = tensor_of(from.data, from.stride_bytes, from.dtype, digits);
  };
  set(to.branch, b.branch), set(to.dbranch, b.dbranch), set(to.rstd, b.rstd), set(to.mean, b.mean);
  set(to.weight, b.weight), set(to.bias, b.bias), set(to.residual_gate, b.residual_gate);
  set(to.dweight, b.dweight), set(to.dbias, b.dbias), set(to.dresidual_gate, b.dresidual_gate);
  if (plan.keeps_branch_statistics) {
    to.rstd = values_in(workspace + plan.branch_rstd_offset, digits);
    if (b.kind == FASTNORM_NORM_LAYER)
      to.mean = values_in(workspace + plan.branch_mean_offset, digits);
  }
  if (plan.keeps_means) to.means = values_in(workspace + plan.means_offset, digits, 2);
  to.sum_scale = reinterpret_cast<const char*>(b.sum_scale);
  to.weight_offset = b.weight_offset;
  to.alpha = b.alpha;
  to.act = function_of(b.act);
  const struct {
    bool set;
    NormBackwardBits bit;
  } bits[] = {{b.accumulate_dweight, kBackwardAccumulateBranchDweight},
              {b.accumulate_dbias, kBackwardAccumulateBranchDbias},
              {b.accumulate_dresidual_gate, kBackwardAccumulateResidualGate},
              {b.needs_norm(), kBackwardBranchNorm},
              {rounds_normalized(b.rounding), kBackwardBranchRoundNormalized},
              {b.rounding == FASTNORM_ROUND_EVERY_STEP, kBackwardBranchRoundGain},
              {b.round_result, kBackwardBranchRoundResult}};
  for (const auto& option : bits) {
    if (option.set) p->bits |= option.bit;
  }
}

// The branch's rows as the x of a call that wants statistics alone.
NormBackwardDesc statistics_of_branch(const NormBackwardDesc& d) {
  NormBackwardDesc of = d;
  of.kind = d.branch.kind;
  of.rounding = d.branch.rounding;
  of.eps = d.branch.eps;
  of.x = of.dx = d.branch.branch;
  of.mean = of.rstd = {};
  of.branch = {};
  return of;
}

// The parameters of all launches except those of the branch's statistics, without a step's own
// bits.
NormBackwardParams make_norm_backward_params(const NormBackwardDesc& d,
                                             const NormBackwardPlan& plan, void* workspace) {
  const Digits digits = digits_of(d);
  const bool empty = d.shared_rows == 0;
  NormBackwardParams p = {};
  if (digits.count == 3) p.bits |= kBackwardThreeIndices;
  if (d.rounding == FASTNORM_ROUND_NORMALIZED || d.rounding == FASTNORM_ROUND_EVERY_STEP)
    p.bits |= kBackwardRoundNormalized;
  if (d.rounding == FASTNORM_ROUND_EVERY_STEP) p.bits |= kBackwardRoundGain;
  if (d.accumulate_dweight) p.bits |= kBackwardAccumulateDweight;
  if (d.accumulate_dbias) p.bits |= kBackwardAccumulateDbias;
  p.rows = static_cast<uint32_t>(d.rows);
  p.shared_rows = empty ? 1 : static_cast<uint32_t>(d.shared_rows);
  p.groups = static_cast<uint32_t>(d.groups);
  p.lanes = static_cast<uint32_t>(plan.lanes);
  p.blocks = static_cast<uint32_t>(plan.row_blocks);
  p.step = p.lanes * p.blocks;
  p.split_bits = static_cast<uint32_t>(std::countr_zero(static_cast<uint32_t>(plan.split)));
  p.fold_blocks = std::bit_ceil(p.blocks);
  p.vectors = static_cast<int32_t>((d.n * dtype_bytes(d.x.dtype) + 15) / 16);
  p.n = d.n;
  p.inv_n = d.inv_n;
  p.weight_offset = d.weight_offset;
  p.dtype = d.dtype;
  for (int i = 0; i + 1 < digits.count; ++i)
    p.outer[i] = make_divisor(static_cast<uint32_t>(digits.extent[i]));
  p.dy_is_scalar = d.dy_element_bytes == 0;

  const auto rows = [&](const RowTensor& t) {
    return tensor_of(t.data, t.stride_bytes, t.dtype, digits);
  };
  const auto parameter = [&](const ParameterTensor& t) {
    return tensor_of(t.data, t.stride_bytes, t.dtype, digits);
  };
  p.x = rows(d.x), p.dy = rows(d.dy), p.dresidual_in = rows(d.dresidual_in);
  p.dx = rows(d.dx), p.dresidual = rows(d.dresidual);
  p.gate = rows(d.gate.gate), p.dgate = rows(d.gate.dgate), p.bias = parameter(d.gate.bias);
  p.gate_act = function_of(d.gate.act);
  if (d.kind == FASTNORM_NORM_LAYER) p.bits |= kBackwardLayer;
  if (d.gate.before) p.bits |= kBackwardGateBefore;
  if (d.gate.round_result) p.bits |= kBackwardRoundResult;
  p.rstd = rows(d.rstd), p.mean = rows(d.mean);
  p.weight = parameter(d.weight), p.dweight = parameter(d.dweight), p.dbias = parameter(d.dbias);

  const auto at = [&](uint64_t offset) { return static_cast<char*>(workspace) + offset; };
  if (plan.keeps_statistics) {
    p.rstd = values_in(at(plan.rstd_offset), digits);
    if (d.kind == FASTNORM_NORM_LAYER) p.mean = values_in(at(plan.mean_offset), digits);
  }
  if (d.branch.present) set_branch(d, plan, digits, static_cast<char*>(workspace), &p);
  if (digits.count == 1) p.bits |= kBackwardSingleIndex;
  constexpr uint32_t kRounds = kBackwardRoundNormalized | kBackwardRoundGain |
                               kBackwardRoundResult | kBackwardBranchRoundNormalized;
  if (has_even_rows(d, digits, p) && has_plain_weight(d) && (p.bits & kRounds) == 0)
    p.bits |= kBackwardLean;
  const auto sums = sums_of(d);
  for (size_t i = 0; i < sums.size(); ++i) {
    if (*sums[i]) p.partial[i] = reinterpret_cast<float*>(at(plan.partial_offset[i]));
  }
  p.partial_stride = plan.partial_stride;
  if (d.needs_statistics() && !d.rstd && !empty) p.forward = forward_params(d, digits);
  return p;
}

}  // namespace

NormDesc forward_of(const NormBackwardDesc& d, Dtype dtype) {
  NormDesc forward;
  forward.rows = d.rows;
  forward.n = d.n;
  forward.dtype = forward.sum_dtype = forward.x.dtype = dtype;
  forward.kind = d.kind;
  forward.rounding = d.rounding;
  forward.eps = d.eps;
  forward.inv_n = d.inv_n;
  forward.x.data = d.x.data;
  return forward;
}

NormBackwardParams make_step_params(const NormBackwardDesc& d, const NormBackwardPlan& plan,
                                    const NormBackwardStep& step, void* workspace) {
  NormBackwardParams p;
  if (step.of_branch) {
    NormBackwardPlan of_branch = plan;
    of_branch.keeps_statistics = true;
    of_branch.rstd_offset = plan.branch_rstd_offset;
    of_branch.mean_offset = plan.branch_mean_offset;
    p = make_norm_backward_params(statistics_of_branch(d), of_branch, workspace);
  } else {
    p = make_norm_backward_params(d, plan, workspace);
  }
  p.bits |= step.bits;
  return p;
}

}  // namespace fastnorm::cuda
