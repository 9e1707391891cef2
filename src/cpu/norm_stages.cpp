#include "cpu/norm_stages.h"

#include "cpu/fp_mode.h"
#include "cpu/norm.h"

namespace fastnorm::cpu {
namespace {

RowRef row_ref(const RowTensor& t) {
  if (!t) return {};
  return {reinterpret_cast<char*>(t.data),
          {t.stride_bytes[0], t.stride_bytes[1], t.stride_bytes[2]}};
}

Activation activation_of(fastnorm_activation activation) {
  return activation == FASTNORM_ACTIVATION_SILU      ? Activation::kSilu
         : activation == FASTNORM_ACTIVATION_SIGMOID ? Activation::kSigmoid
                                                     : Activation::kIdentity;
}

int64_t step_of(const ColumnTensor& c, bool shared, int64_t group) {
  return c && !shared ? group * dtype_bytes(c.dtype) : 0;
}

}  // namespace

StagesTask make_stages_task(const NormDesc& d, const NormPlan& plan, const IsaKernels& isa) {
  const StagesDesc& s = d.stages;
  StagesTask task = {isa.norm_stages->at[plan.index], {}};
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
  p.gate_type = !s.gate                   ? ColumnType::kAbsent
                : s.gate.dtype == d.dtype ? ColumnType::kElement
                                          : ColumnType::kF32;
  p.gate_act = activation_of(s.gate_act);
  p.activation = activation_of(s.activation);
  p.gate_before = s.gate_before;
  p.gate_from_rounded = s.gate_from_rounded;
  return task;
}

void run_stages_range(void* task, int64_t begin, int64_t end) {
  const auto& t = *static_cast<const StagesTask*>(task);
  const FpMode mode;
  t.kernel(t.params, begin, end);
}

}  // namespace fastnorm::cpu
