#include "cpu/norm_backward/run.h"

#include <algorithm>

#include "core/common/grain.h"
#include "cpu/common/fp_mode.h"
#include "cpu/norm_stages/run.h"

namespace fastnorm::cpu {
namespace {

constexpr ByIsa<NormBackwardKernels> kKernels = FASTNORM_BY_ISA(kNormBackward);

static_assert(kRowDims == kMaxOuter);

template <class Tensor>
RowRef row_ref(const Tensor& t) {
  if (!t) return {};
  return {reinterpret_cast<char*>(t.data),
          {t.stride_bytes[0], t.stride_bytes[1], t.stride_bytes[2]}};
}

SumRef sum_ref(const ParameterTensor& t, bool accumulate, std::byte* partial) {
  const RowRef row = row_ref(t);
  return {row.data,
          {row.stride_bytes[0], row.stride_bytes[1], row.stride_bytes[2]},
          t.dtype,
          accumulate,
          reinterpret_cast<float*>(partial)};
}

bool is_plain(const NormBackwardDesc& d) {
  const Dtype h = d.x.dtype;
  return d.dy.dtype == h && d.dy_element_bytes != 0 && d.dtype == h && (!d.dx || d.dx.dtype == h) &&
         (!d.weight || d.weight.dtype == h) && d.rounding == FASTNORM_ROUND_ONCE && !d.gate.present;
}

BranchParams branch_params(const NormBackwardDesc& d, const uint64_t* offset,
                           std::byte* workspace) {
  const NormBackwardBranch& b = d.branch;
  BranchParams p = {};
  p.branch = row_ref(b.branch);
  p.dbranch = row_ref(b.dbranch);
  p.mean = row_ref(b.mean);
  p.rstd = row_ref(b.rstd);
  p.weight = row_ref(b.weight);
  p.bias = row_ref(b.bias);
  p.residual_gate = row_ref(b.residual_gate);
  if (b.dweight) p.dweight = sum_ref(b.dweight, b.accumulate_dweight, workspace + offset[2]);
  if (b.dbias) p.dbias = sum_ref(b.dbias, b.accumulate_dbias, workspace + offset[3]);
  if (b.dresidual_gate) {
    p.dresidual_gate =
        sum_ref(b.dresidual_gate, b.accumulate_dresidual_gate, workspace + offset[4]);
  }
  p.sum_scale = reinterpret_cast<const char*>(b.sum_scale);
  p.eps = b.eps;
  p.weight_offset = b.weight_offset;
  p.alpha = b.alpha;
  p.act = activation_of(b.act);
  p.weight_dtype = b.weight.dtype;
  p.bias_dtype = b.bias.dtype;
  p.residual_gate_dtype = b.residual_gate.dtype;
  p.present = true;
  p.normalise = b.needs_norm();
  p.layer = b.kind == FASTNORM_NORM_LAYER;
  p.every_step = b.rounding == FASTNORM_ROUND_EVERY_STEP;
  p.round_xhat = rounds_normalized(b.rounding);
  p.round_result = b.round_result;
  return p;
}

const NormBackwardKernel& kernel_of(const NormBackwardDesc& d, const IsaKernels& isa) {
  const int kind = d.kind == FASTNORM_NORM_LAYER ? 1 : 0;
  return kKernels[isa].at[kind][static_cast<int>(d.x.dtype)];
}

}  // namespace

NormBackwardTask make_norm_backward_task(const NormBackwardDesc& d, const NormBackwardPlan& plan,
                                         const IsaKernels& isa, void* workspace) {
  NormBackwardTask task = {};
  task.range = d.has_sums() ? kernel_of(d, isa).blocks : kernel_of(d, isa).rows;
  NormBackwardParams& p = task.params;
  p.dy = row_ref(d.dy);
  p.x = row_ref(d.x);
  p.dresidual_in = row_ref(d.dresidual_in);
  p.dx = row_ref(d.dx);
  p.dresidual = row_ref(d.dresidual);
  p.mean = row_ref(d.mean);
  p.rstd = row_ref(d.rstd);
  p.weight = row_ref(d.weight);
  auto* const partial = static_cast<std::byte*>(workspace);
  const uint64_t* const offset = plan.partial_offset;
  if (d.dweight) p.dweight = sum_ref(d.dweight, d.accumulate_dweight, partial + offset[0]);
  if (d.dbias) p.dbias = sum_ref(d.dbias, d.accumulate_dbias, partial + offset[1]);
  if (d.branch.present) p.branch = branch_params(d, offset, partial);
  p.n = d.n;
  p.rows = d.rows;
  p.shared_rows = d.shared_rows;
  p.groups = d.groups;
  p.group_step = 1;
  for (int i = 0; i < kRowDims; ++i) {
    p.outer[i] = d.outer[i];
    if (i < d.shared_rank) p.group_step *= d.outer[i];
  }
  p.dy_element_bytes = d.dy_element_bytes;
  p.lanes = plan.lanes;
  p.blocks = plan.row_blocks;
  p.partial_stride = plan.partial_stride;
  p.eps = d.eps;
  p.inv_n = d.inv_n;
  p.weight_offset = d.weight_offset;
  p.dtype = d.dtype;
  p.dx_dtype = d.dx.dtype;
  p.dy_dtype = d.dy.dtype;
  p.weight_dtype = d.weight.dtype;
  p.dresidual_in_dtype = d.dresidual_in.dtype;
  p.dresidual_dtype = d.dresidual.dtype;
  p.every_step = d.rounding == FASTNORM_ROUND_EVERY_STEP;
  p.round_xhat = d.rounding == FASTNORM_ROUND_NORMALIZED || p.every_step;
  p.layer = d.kind == FASTNORM_NORM_LAYER;
  p.plain = is_plain(d);
  p.gate = row_ref(d.gate.gate);
  p.dgate = row_ref(d.gate.dgate);
  p.bias = row_ref(d.gate.bias);
  p.gated = d.gate.present;
  p.gate_before = d.gate.before;
  p.round_result = d.gate.round_result;
  p.gate_act = activation_of(d.gate.act);
  p.gate_dtype = d.gate.gate.dtype;
  p.dgate_dtype = d.gate.dgate.dtype;
  p.bias_dtype = d.gate.bias.dtype;
  return task;
}

NormBackwardRange norm_backward_fold(const NormBackwardDesc& d, const IsaKernels& isa) {
  // Sums of heads with own kernels, and those of a call with a branch, lie in the order of the
  // columns, as f32's do.
  if (d.of_heads.needs_own_kernels() || d.branch.present)
    return kKernels[isa].at[0][static_cast<int>(Dtype::kF32)].fold;
  return kernel_of(d, isa).fold;
}

int64_t norm_backward_fold_units(const NormBackwardDesc& d) {
  return d.groups * ((d.n + kFoldColumns - 1) / kFoldColumns);
}

int64_t norm_backward_fold_grain(const NormBackwardPlan& plan) {
  return std::max<int64_t>(
      1, kNormBackwardGrain / (kFoldColumns * std::max<int64_t>(1, plan.row_blocks)));
}

void run_norm_backward_range(void* task, int64_t begin, int64_t end) {
  const auto& t = *static_cast<const NormBackwardTask*>(task);
  const FpMode mode;
  t.range(t.params, begin, end);
}

}  // namespace fastnorm::cpu
