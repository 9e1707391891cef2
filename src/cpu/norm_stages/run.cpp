#include "cpu/norm_stages/run.h"

#include "core/common/reciprocal.h"
#include "cpu/common/fp_mode.h"
#include "cpu/norm/run.h"

namespace fastnorm::cpu {
namespace {

constexpr ByIsa<StagesKernels> kKernels = FASTNORM_BY_ISA(kNormStages);

RowRef row_ref(const RowTensor& t) {
  if (!t) return {};
  return {reinterpret_cast<char*>(t.data),
          {t.stride_bytes[0], t.stride_bytes[1], t.stride_bytes[2]}};
}

// The type of a modulator or a gate, which has x's dtype or f32.
OperandType type_of(Dtype dtype, const NormDesc& d) {
  return dtype == d.dtype ? OperandType::kElement : OperandType::kF32;
}

ModulatorParams modulator_params(const NormDesc& d, const Modulator& m) {
  ModulatorParams p = {};
  if (!m) return p;
  p.rows = row_ref(m.rows);
  p.type = type_of(m.rows.dtype, d);
  p.single = m.single;
  p.index_stride = m.index_stride;
  p.table = reinterpret_cast<const char*>(m.table.data);
  if (m.table) p.table_type = type_of(m.table.dtype, d);
  return p;
}

int64_t step_of(const WeightTensor& c, bool shared, int64_t group) {
  return c && !shared ? group * dtype_bytes(c.dtype) : 0;
}

// The branch as a norm of its own.
void set_branch(const NormDesc& d, const IsaKernels& isa, StagesParams* p) {
  const StagesDesc& s = d.stages;
  NormDesc branch = d;
  branch.has_stages = false;
  branch.quant = QuantDesc{};
  branch.residual = branch.residual_out = branch.y = branch.mean = branch.rstd = RowTensor{};
  branch.kind = s.branch_kind;
  branch.rounding = s.branch_rounding;
  branch.eps = s.branch_eps;
  branch.weight_offset = s.branch_weight_offset;
  branch.weight = s.branch_weight;
  branch.bias = s.branch_bias;
  branch.inv_n = reciprocal_of(d.n);
  p->branch = make_params(branch, NormPlan{}, isa, 0);
  p->branch_rstd = row_ref(s.branch_rstd);
  p->branch_rounded = s.branch_rounded;
}

}  // namespace

Activation activation_of(fastnorm_activation activation) {
  return activation == FASTNORM_ACTIVATION_SILU      ? Activation::kSilu
         : activation == FASTNORM_ACTIVATION_SIGMOID ? Activation::kSigmoid
         : activation == FASTNORM_ACTIVATION_TANH    ? Activation::kTanh
                                                     : Activation::kIdentity;
}

StagesTask make_stages_task(const NormDesc& d, const NormPlan& plan, const IsaKernels& isa) {
  const StagesDesc& s = d.stages;
  StagesTask task = {kKernels[isa].at[plan.index], {}};
  StagesParams& p = task.params;
  p.norm = make_params(d, NormPlan{}, isa, 0);
  p.norm.n = s.group;
  p.row_columns = d.n;
  p.gate = row_ref(s.gate);
  p.mean_in = row_ref(s.mean_in);
  p.rstd_in = row_ref(s.rstd_in);
  p.sumsq = row_ref(s.sumsq);
  p.weight_step = step_of(d.weight, s.weight_shared, s.group);
  p.bias_step = step_of(d.bias, s.bias_shared, s.group);
  p.gate_type = s.gate ? type_of(s.gate.dtype, d) : OperandType::kAbsent;
  p.gate_act = activation_of(s.gate_act);
  p.activation = activation_of(s.activation);
  p.gate_before = s.gate_before;
  p.gate_from_rounded = s.gate_from_rounded;
  p.sum_scale = reinterpret_cast<const char*>(s.sum_scale);
  p.alpha = s.alpha;
  p.scaled = s.scaled;
  p.sum_every_step = s.sum_every_step;
  p.residual_gate = modulator_params(d, s.residual_gate);
  p.modulation_scale = modulator_params(d, s.modulation_scale);
  p.modulation_shift = modulator_params(d, s.modulation_shift);
  p.modulation_index = row_ref(s.modulation_index);
  p.wide_index = s.modulation_index.dtype == Dtype::kI64;
  p.residual_gate_act = activation_of(s.residual_gate_act);
  p.plain_scale = s.plain_scale;
  p.modulation_every_step = s.modulation_every_step;
  p.has_branch = s.branch;
  if (s.branch) set_branch(d, isa, &p);
  return task;
}

void run_stages_range(void* task, int64_t begin, int64_t end) {
  const auto& t = *static_cast<const StagesTask*>(task);
  const FpMode mode;
  t.kernel(t.params, begin, end);
}

}  // namespace fastnorm::cpu
