#include "stage_options.h"

#include "shape.h"

namespace fastnorm::tool {
namespace {

constexpr const char* kStageGroup = "Stages";

using Choices = std::vector<std::string>;

const Choices kStageActivations = {"identity", "silu", "sigmoid", "tanh"};
const Choices kGatePositions = {"after-norm", "before-norm"};
const Choices kGateSources = {"f32", "rounded"};
const Choices kBranchNorms = {"none", "rms", "layer"};
const Choices kBranchRoundings = {"once", "normalized", "every-step"};
const Choices kStepRoundings = {"once", "every-step"};

// The number of a choice, which is its place in the list. The parser has let no other name through.
template <typename Enum>
Enum stage_choice(const Choices& names, const std::string& name) {
  int32_t number = 0;
  while (names[static_cast<size_t>(number)] != name) ++number;
  return static_cast<Enum>(number);
}

}  // namespace

void StageOptions::add(CLI::App& command, bool named) {
  const auto option = [&](const char* name, std::string& value, const char* type,
                          const char* text) {
    command.add_option(name, value, text)->type_name(type)->group(kStageGroup);
  };
  const auto tensor = [&](const char* name, std::string& value, const char* text) {
    if (named) return option(name, value, "NAME", text);
    command.add_flag(name, value, text)->group(kStageGroup);
  };
  const auto modulator = [&](const char* name, std::string& value, const char* text) {
    option(name, value, named ? "NAME" : "SHAPE", text);
  };
  const auto choice = [&](const char* name, std::string& value, const Choices& names,
                          const char* text) {
    command.add_option(name, value, text)
        ->check(CLI::IsMember(names))
        ->capture_default_str()
        ->group(kStageGroup);
  };
  const auto number = [&](const char* name, auto& value, const char* text) {
    command.add_option(name, value, text)->capture_default_str()->group(kStageGroup);
  };
  const auto flag = [&](const char* name, bool& value, const char* text) {
    command.add_flag(name, value, text)->group(kStageGroup);
  };
  tensor("--gate", gate, "a factor of each element, shaped as x; x's dtype or f32");
  choice("--gate-act", gate_act_, kStageActivations, "function of the gate");
  choice("--gate-position", gate_position_, kGatePositions, "where the gate multiplies");
  choice("--gate-source", gate_source_, kGateSources, "what a gate after the norm multiplies");
  choice("--activation", activation_, kStageActivations, "function of the result");
  add_number(command, "--group-size", group_size, "columns that share a statistic; 0 = all", 0,
             INT64_MAX)
      ->group(kStageGroup);
  tensor("--sumsq", sumsq, "sums of squares (layer: means and sums), f32, output");
  tensor("--mean-in", mean_in, "means to use, f32 (layer)");
  tensor("--rstd-in", rstd_in, "rstd to use, f32");
  choice("--branch-norm", branch_norm_, kBranchNorms, "norm of x before the residual is added");
  number("--branch-eps", branch_eps_, "eps of that norm");
  number("--branch-weight-offset", branch_weight_offset_, "added to --branch-weight");
  choice("--branch-rounding", branch_rounding_, kBranchRoundings, "rounding of that norm");
  flag("--branch-rounded", branch_rounded_, "round that norm's result to x's dtype");
  tensor("--branch-weight", branch_weight, "[.., n]; default: 1");
  tensor("--branch-bias", branch_bias, "[.., n]; default: 0");
  tensor("--branch-rstd", branch_rstd, "rstd of that norm, f32, output; --backward: input");
  number("--alpha", alpha_, "factor of x, or of its norm, in the sum");
  tensor("--sum-scale", sum_scale, "[1] f32, factor of the sum");
  choice("--sum-rounding", sum_rounding_, kStepRoundings, "where the sum is rounded to x's dtype");
  modulator("--residual-gate", residual_gate, "factor of x in the sum, broadcasts against x");
  tensor("--residual-gate-table", residual_gate_table, "[n], added to --residual-gate");
  choice("--residual-gate-act", residual_gate_act_, kStageActivations, "function of both together");
  modulator("--modulation-scale", modulation_scale, "1 + it multiplies the result, broadcasts");
  tensor("--scale-table", scale_table, "[n], added to --modulation-scale");
  flag("--modulation-plain-scale", plain_scale_, "multiply by the scale, not by 1 + it");
  modulator("--modulation-shift", modulation_shift, "is added to the result, broadcasts");
  tensor("--shift-table", shift_table, "[n], added to --modulation-shift");
  tensor("--modulation-index", modulation_index,
         "i32 or i64, which row of each modulator a row takes");
  choice("--modulation-rounding", modulation_rounding_, kStepRoundings,
         "where the modulation is rounded to x's dtype");
}

std::vector<std::string> StageOptions::outputs() const { return {sumsq, branch_rstd}; }

const std::vector<std::string>& StageOptions::of_backward() {
  static const std::vector<std::string> kNames = {"--gate",
                                                  "--gate-act",
                                                  "--gate-position",
                                                  "--gate-source",
                                                  "--group-size",
                                                  "--branch-norm",
                                                  "--branch-eps",
                                                  "--branch-weight-offset",
                                                  "--branch-rounding",
                                                  "--branch-rounded",
                                                  "--branch-weight",
                                                  "--branch-bias",
                                                  "--branch-rstd",
                                                  "--alpha",
                                                  "--sum-scale",
                                                  "--residual-gate",
                                                  "--residual-gate-act"};
  return kNames;
}

template <class Args>
void StageOptions::apply_shared(Args* args, uint32_t alpha_flag) const {
  args->gate_act = stage_choice<fastnorm_activation>(kStageActivations, gate_act_);
  args->gate_position = stage_choice<fastnorm_gate_position>(kGatePositions, gate_position_);
  args->gate_source = stage_choice<fastnorm_gate_source>(kGateSources, gate_source_);
  args->group_size = group_size;
  args->branch_norm = normalises_branch() ? 1 : 0;
  args->branch_kind = branch_is_layer() ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
  args->branch_eps = branch_eps_;
  args->branch_weight_offset = branch_weight_offset_;
  args->branch_rounding = stage_choice<fastnorm_rounding>(kBranchRoundings, branch_rounding_);
  args->branch_rounded = branch_rounded_ ? 1 : 0;
  if (alpha_ != 1) args->flags |= alpha_flag, args->alpha = alpha_;
  args->residual_gate_act =
      stage_choice<fastnorm_activation>(kStageActivations, residual_gate_act_);
}

void StageOptions::apply(fastnorm_norm_backward_args* args) const {
  apply_shared(args, FASTNORM_NORM_BACKWARD_ALPHA);
}

void StageOptions::apply(fastnorm_norm_args* args) const {
  apply_shared(args, FASTNORM_NORM_ALPHA);
  args->activation = stage_choice<fastnorm_activation>(kStageActivations, activation_);
  args->sum_rounding = stage_choice<fastnorm_sum_rounding>(kStepRoundings, sum_rounding_);
  args->modulation_rounding =
      stage_choice<fastnorm_modulation_rounding>(kStepRoundings, modulation_rounding_);
  if (plain_scale_) args->flags |= FASTNORM_NORM_MODULATION_PLAIN_SCALE;
}

}  // namespace fastnorm::tool
