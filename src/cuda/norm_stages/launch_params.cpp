#include "cuda/norm_stages/launch_params.h"

#include "core/common/reciprocal.h"
#include "cuda/norm/launch_params.h"

namespace fastnorm::cuda {
namespace {

StageTensor tensor_of(const RowTensor& t) {
  return {{reinterpret_cast<char*>(t.data), t.stride_bytes[0]},
          {{t.stride_bytes[1], t.stride_bytes[2]}}};
}

// The branch as a norm of its own.
NormDesc branch_of(const NormDesc& d) {
  const StagesDesc& s = d.stages;
  NormDesc branch = d;
  branch.has_stages = false;
  branch.quant = QuantDesc{};
  branch.residual = branch.residual_out = branch.y = branch.mean = branch.rstd = RowTensor{};
  branch.residual_rounding = FASTNORM_RESIDUAL_EXACT;
  branch.kind = s.branch_kind;
  branch.rounding = s.branch_rounding;
  branch.eps = s.branch_eps;
  branch.weight_offset = s.branch_weight_offset;
  branch.weight = s.branch_weight;
  branch.bias = s.branch_bias;
  branch.inv_n = reciprocal_of(d.n);
  return branch;
}

// True if all inputs but statistics and modulators have x's dtype, and their groups are aligned.
bool is_wide(const NormDesc& d) {
  const StagesDesc& s = d.stages;
  auto bits = static_cast<uint64_t>(s.group * dtype_bytes(d.dtype));
  bool own = true;
  for (const RowTensor* t : {&d.x, &d.residual, &s.gate}) {
    if (!*t) continue;
    own = own && t->dtype == d.dtype;
    bits |= address_bits(t->data, t->stride_bytes);
  }
  for (const WeightTensor* c : {&d.weight, &d.bias, &s.branch_weight, &s.branch_bias}) {
    if (!*c) continue;
    own = own && c->dtype == d.dtype;
    bits |=
        address_bits(c->data, c->outer_stride_bytes) | static_cast<uint64_t>(c->head_stride_bytes);
  }
  return own && bits % 16 == 0;
}

StageModulator modulator_of(const NormDesc& d, const Modulator& m) {
  StageModulator p = {};
  if (!m) return p;
  p.rows = tensor_of(m.rows);
  p.type = operand_type(m.rows.dtype, d.dtype);
  p.index_stride = m.index_stride;
  p.last_row = m.index_rows - 1;
  p.table = reinterpret_cast<const char*>(m.table.data);
  if (m.table) p.table_type = operand_type(m.table.dtype, d.dtype);
  return p;
}

StageModulators modulators_of(const NormDesc& d) {
  const StagesDesc& s = d.stages;
  return {modulator_of(d, s.residual_gate), modulator_of(d, s.modulation_scale),
          modulator_of(d, s.modulation_shift), tensor_of(s.modulation_index),
          function_of(s.residual_gate_act)};
}

uint32_t bits_of(const NormDesc& d) {
  const StagesDesc& s = d.stages;
  uint32_t bits = 0;
  const auto put = [&](bool wanted, uint32_t bit) { bits |= wanted ? bit : 0; };
  put(d.kind == FASTNORM_NORM_LAYER, kStagesLayer);
  put(bool{s.gate}, kStagesGate);
  put(s.gate_before, kStagesGateBefore);
  put(s.gate_from_rounded, kStagesGateRounded);
  put(s.branch, kStagesBranch);
  put(s.branch && s.branch_kind == FASTNORM_NORM_LAYER, kStagesBranchLayer);
  put(s.branch && s.branch_rounded, kStagesBranchRounded);
  put(bool{d.residual}, kStagesResidual);
  put(s.scaled, kStagesScaled);
  put(s.sum_every_step, kStagesSumEveryStep);
  put(s.weight_shared, kStagesWeightShared);
  put(s.bias_shared, kStagesBiasShared);
  put(d.y || d.residual_out || d.quant.any(), kStagesStoresRows);
  put(d.quant.any(), kStagesCodes);
  put(is_wide(d), kStagesWide);
  put(bool{s.residual_gate}, kStagesFactor);
  put(bool{s.modulation_scale}, kStagesScale);
  put(bool{s.modulation_shift}, kStagesShift);
  put(s.residual_gate.single, kStagesSingleFactor);
  put(s.modulation_scale.single, kStagesSingleScale);
  put(s.modulation_shift.single, kStagesSingleShift);
  put(s.plain_scale, kStagesPlainScale);
  put(s.modulation_every_step, kStagesModulateInSteps);
  put(s.modulation_index.dtype == Dtype::kI64, kStagesWideIndex);
  return bits;
}

}  // namespace

NormStagesParams make_norm_stages_params(const NormDesc& desc, const NormPlan& plan) {
  NormStagesParams p = {};
  NormDesc norm = desc;
  // Roundings of a sum need one.
  if (!norm.residual) norm.residual_rounding = FASTNORM_RESIDUAL_EXACT;
  p.norm = make_params(norm, plan);
  const StagesDesc& s = desc.stages;
  if (s.branch) {
    p.branch = make_params(branch_of(desc), plan);
    p.branch_rstd = tensor_of(s.branch_rstd);
  }
  p.bits = bits_of(desc);
  p.gate_type = s.gate ? operand_type(s.gate.dtype, desc.dtype) : OperandType::kAbsent;
  p.gate_act = function_of(s.gate_act);
  p.activation = function_of(s.activation);
  p.columns = static_cast<uint32_t>(desc.n);
  p.group = static_cast<uint32_t>(s.group);
  p.groups = static_cast<uint32_t>(s.groups);
  p.by_group = divisor_or_one(p.group);
  p.alpha = s.alpha;
  p.sum_scale = reinterpret_cast<const float*>(s.sum_scale);
  p.gate = tensor_of(s.gate);
  p.mean_in = tensor_of(s.mean_in), p.rstd_in = tensor_of(s.rstd_in);
  p.sumsq = tensor_of(s.sumsq);
  p.modulators = modulators_of(desc);
  return p;
}

HeldStagesParams make_held_stages_params(const NormDesc& desc, const NormPlan& plan) {
  HeldStagesParams p = {};
  const StagesDesc& s = desc.stages;
  p.norm = make_params(desc, plan);
  p.norm.rows = static_cast<uint32_t>(desc.rows * s.groups);
  p.norm.vectors = static_cast<int32_t>(s.group * dtype_bytes(desc.dtype) / 16);
  p.bits = bits_of(desc);
  const auto put = [&](bool wanted, uint32_t bit) { p.bits |= wanted ? bit : 0; };
  put(rounds_normalized(desc.rounding), kStagesRoundNormalized);
  put(s.branch && rounds_normalized(s.branch_rounding), kStagesBranchRoundNormalized);
  put(desc.residual && desc.residual_rounding == FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS,
      kStagesRoundSum);
  put(has_mixed_modulators(desc), kStagesMixed);
  put(desc.kind == FASTNORM_NORM_RMS && !desc.residual && !desc.residual_out && !s.residual_gate &&
          !s.scaled,
      kStagesAlone);
  p.gate_act = function_of(s.gate_act);
  p.groups = static_cast<uint32_t>(s.groups);
  p.by_groups = divisor_or_one(p.groups);
  p.weight_step = desc.weight && !s.weight_shared
                      ? static_cast<uint32_t>(s.group * dtype_bytes(desc.weight.dtype))
                      : 0;
  p.gate = tensor_of(s.gate);
  p.branch_weight = reinterpret_cast<const char*>(s.branch_weight.data);
  p.branch_eps = s.branch_eps, p.branch_weight_offset = s.branch_weight_offset;
  p.alpha = s.alpha;
  p.sum_scale = reinterpret_cast<const float*>(s.sum_scale);
  p.branch_rstd = tensor_of(s.branch_rstd);
  p.modulators = modulators_of(desc);
  return p;
}

}  // namespace fastnorm::cuda
