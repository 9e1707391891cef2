#include "stage_options.h"

#include <cstdio>

namespace fastnorm::tool {
namespace {

constexpr const char* kStageGroup = "Stages";

const std::vector<std::string> kStageActivations = {"identity", "silu", "sigmoid", "tanh"};
const std::vector<std::string> kStepRoundings = {"once", "every-step"};

}  // namespace

std::string& NamedTensors::operator[](const std::string& option) {
  for (auto& [name, value] : all_) {
    if (name == option) return value;
  }
  return all_.emplace_back(option, "").second;
}

const std::string& NamedTensors::at(const std::string& option) const {
  static const std::string kNone;
  for (const auto& [name, value] : all_) {
    if (name == option) return value;
  }
  return kNone;
}

void StageOptions::add(CLI::App& command, bool named, NamedTensors* tensors) {
  const auto option = [&](const char* name, const char* type, const char* text) {
    command.add_option(name, (*tensors)[name], text)->type_name(type)->group(kStageGroup);
  };
  const auto tensor = [&](const char* name, const char* text) {
    if (named) return option(name, "NAME", text);
    command.add_flag(name, (*tensors)[name], text)->group(kStageGroup);
  };
  const auto modulator = [&](const char* name, const char* text) {
    option(name, named ? "NAME" : "SHAPE", text);
  };
  const auto choice = [&](const char* name, const std::vector<std::string>& names,
                          const char* text) { fields_.choice(command, name, names, text); };
  fields_.group(kStageGroup);
  tensor("--gate", "a factor of each element, shaped as x; x's dtype or f32");
  choice("--gate-act", kStageActivations, "function of the gate");
  choice("--gate-position", {"after-norm", "before-norm"}, "where the gate multiplies");
  choice("--gate-source", {"f32", "rounded"}, "what a gate after the norm multiplies");
  choice("--activation", kStageActivations, "function of the result");
  fields_.number(command, "--group-size", int64_t{0}, "columns that share a statistic; 0 = all");
  tensor("--sumsq", "sums of squares (layer: means and sums), f32, output");
  tensor("--mean-in", "means to use, f32 (layer)");
  tensor("--rstd-in", "rstd to use, f32");
  command.add_option("--branch-norm", branch_norm_, "norm of x before the residual is added")
      ->check(CLI::IsMember({"none", "rms", "layer"}))
      ->capture_default_str()
      ->group(kStageGroup);
  fields_.number(command, "--branch-eps", 0.0f, "eps of that norm");
  fields_.number(command, "--branch-weight-offset", 0.0f, "added to --branch-weight");
  choice("--branch-rounding", {"once", "normalized", "every-step"}, "rounding of that norm");
  fields_.flag(command, "--branch-rounded", "round that norm's result to x's dtype");
  tensor("--branch-weight", "[.., n]; default: 1");
  tensor("--branch-bias", "[.., n]; default: 0");
  tensor("--branch-rstd", "rstd of that norm, f32, output; --backward: input");
  command.add_option("--alpha", alpha_, "factor of x, or of its norm, in the sum")
      ->capture_default_str()
      ->group(kStageGroup);
  tensor("--sum-scale", "[1] f32, factor of the sum");
  choice("--sum-rounding", kStepRoundings, "where the sum is rounded to x's dtype");
  modulator("--residual-gate", "factor of x in the sum, broadcasts against x");
  tensor("--residual-gate-table", "[n], added to --residual-gate");
  choice("--residual-gate-act", kStageActivations, "function of both together");
  modulator("--modulation-scale", "1 + it multiplies the result, broadcasts");
  tensor("--scale-table", "[n], added to --modulation-scale");
  fields_.bit(command, "--modulation-plain-scale", FASTNORM_NORM_MODULATION_PLAIN_SCALE,
              "multiply by the scale, not by 1 + it");
  modulator("--modulation-shift", "is added to the result, broadcasts");
  tensor("--shift-table", "[n], added to --modulation-shift");
  tensor("--modulation-index", "i32 or i64, which row of each modulator a row takes");
  choice("--modulation-rounding", kStepRoundings, "where the modulation is rounded to x's dtype");
}

std::vector<std::string> StageOptions::of_backward(CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->get_group() == kStageGroup &&
        !path_of(*support::find_family("norm_backward"), name).empty())
      names.push_back(name);
  }
  return names;
}

std::string StageOptions::words(const support::CallFamily& family) const {
  std::string words = fields_.words(family);
  if (normalises_branch()) words += " branch_norm=1 branch_kind=" + branch_norm_;
  if (alpha_ == 1) return words;
  char alpha[32];
  std::snprintf(alpha, sizeof alpha, " alpha=%.9g", static_cast<double>(alpha_));
  return words + alpha;
}

uint32_t StageOptions::flags(const support::CallFamily& family) const {
  const bool backward = std::string(family.name) == "norm_backward";
  const uint32_t alpha =
      backward ? uint32_t{FASTNORM_NORM_BACKWARD_ALPHA} : uint32_t{FASTNORM_NORM_ALPHA};
  return fields_.flags() | (alpha_ != 1 ? alpha : 0);
}

}  // namespace fastnorm::tool
