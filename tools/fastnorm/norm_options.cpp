#include "norm_options.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "bench_case.h"
#include "dtype.h"
#include "shape.h"

namespace fastnorm::tool {
namespace {

template <typename Enum>
using Choice = std::pair<const char*, Enum>;

constexpr std::array<Choice<fastnorm_norm_kind>, 2> kKinds = {
    {{"rms", FASTNORM_NORM_RMS}, {"layer", FASTNORM_NORM_LAYER}}};
constexpr std::array<Choice<fastnorm_rounding>, 4> kRoundings = {
    {{"once", FASTNORM_ROUND_ONCE},
     {"normalized", FASTNORM_ROUND_NORMALIZED},
     {"every-step", FASTNORM_ROUND_EVERY_STEP},
     {"once-rw", FASTNORM_ROUND_ONCE_RW}}};
constexpr std::array<Choice<fastnorm_residual_rounding>, 3> kResidualRoundings = {
    {{"exact", FASTNORM_RESIDUAL_EXACT},
     {"before-apply", FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY},
     {"before-statistics", FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS}}};
constexpr std::array<Choice<fastnorm_quant_scheme>, 7> kQuantSchemes = {
    {{"none", FASTNORM_QUANT_NONE},
     {"per-tensor", FASTNORM_QUANT_PER_TENSOR},
     {"per-row", FASTNORM_QUANT_PER_ROW},
     {"per-block", FASTNORM_QUANT_PER_BLOCK},
     {"mxfp8", FASTNORM_QUANT_MXFP8},
     {"nvfp4", FASTNORM_QUANT_NVFP4},
     {"mxfp4", FASTNORM_QUANT_MXFP4}}};
constexpr std::array<Choice<fastnorm_quant_source>, 2> kQuantSources = {
    {{"f32", FASTNORM_QUANT_FROM_F32}, {"rounded", FASTNORM_QUANT_FROM_ROUNDED}}};
constexpr std::array<Choice<fastnorm_quant_division>, 2> kQuantDivisions = {
    {{"reciprocal", FASTNORM_QUANT_MULTIPLY_RECIPROCAL}, {"divide", FASTNORM_QUANT_DIVIDE}}};
constexpr std::array<Choice<fastnorm_scale_layout>, 3> kScaleLayouts = {
    {{"row-major", FASTNORM_SCALE_ROW_MAJOR},
     {"column-major", FASTNORM_SCALE_COLUMN_MAJOR},
     {"swizzled-128x4", FASTNORM_SCALE_SWIZZLED_128X4}}};

template <typename Choices>
void add_choice(CLI::App& command, const char* name, std::string& value, const Choices& choices,
                const char* text) {
  std::vector<std::string> names;
  for (const auto& choice : choices) names.emplace_back(choice.first);
  command.add_option(name, value, text)
      ->check(CLI::IsMember(names))
      ->capture_default_str()
      ->group("Arithmetic");
}

template <typename Value>
void add_value(CLI::App& command, const char* name, Value& value, const char* text) {
  command.add_option(name, value, text)->capture_default_str()->group("Arithmetic");
}

template <typename Choices>
auto value_of(const Choices& choices, const std::string& name) {
  for (const auto& choice : choices) {
    if (name == choice.first) return choice.second;
  }
  throw CommandError("no such choice: " + name);  // the parser has let nothing else through
}

}  // namespace

void TimedOptions::add_to(CLI::App& command, const std::vector<std::string>& more) {
  std::vector<std::string> known = bench_ops();
  known.insert(known.end(), more.begin(), more.end());
  std::string text =
      "rms, add (RMSNorm of x + residual, which is stored), layer; rms_fp8, add_fp8, "
      "layer_fp8: to f8 e4m3 by a given scale; rms_row_fp8, add_row_fp8, layer_row_fp8: by a "
      "scale a row; rms_block_fp8, add_block_fp8, layer_block_fp8: by one for each 128 "
      "columns; rms_mxfp8, rms_nvfp4; rms_f32, layer_f32: weight and bias in f32";
  const auto has = [&](const char* op) {
    return std::find(more.begin(), more.end(), op) != more.end();
  };
  if (has("rms_backward")) {
    text +=
        "; the gradients: rms_backward, add_backward (with dresidual_in), layer_backward; rms_dx, "
        "add_dx, layer_dx: dx alone";
  }
  if (has("gated")) {
    text +=
        "; stages: gated (norm times silu of a gate), sandwich (norm, add, norm), adaln (gated "
        "add, layer, scale and shift)";
  }
  command.add_option("--op", ops, text)
      ->delimiter(',')
      ->check(CLI::IsMember(known))
      ->capture_default_str();
  command.add_option("--dtype", dtypes, "of x, weight, bias and residual")
      ->delimiter(',')
      ->check(CLI::IsMember(row_dtype_names()))
      ->capture_default_str();
  add_number(command, "--repeats", repeats, "samples of each case; medians count", 1, 1000);
}

void add_tuning_option(CLI::App& command, std::string* path) {
  command.add_option("--tuning", *path, "a GPU: file of \"fastnorm tune\"")->type_name("FILE");
}

void add_threads_option(CLI::App& command, int32_t* threads) {
  add_number(command, "--threads", *threads, "CPU threads", 1, 1024);
}

void add_output_option(CLI::App& command, std::string* path) {
  command.add_option("--output", *path, "also write the results to this file")->type_name("FILE");
}

void add_device_option(CLI::App& command, std::string* device, bool planned) {
  command
      .add_option(
          "--device", *device,
          planned ? "cpu, cuda:N, or a GPU that need not be there: sm_80, sm_90, sm_100f, sm_120f"
                  : "cpu or cuda:N")
      ->check(CLI::Validator(planned ? check_target : check_device, ""))
      ->type_name(planned ? kPlannedDevice : kDevice)
      ->capture_default_str();
}

void NormOptions::add_to(CLI::App& command) {
  const auto flag = [&](const char* name, bool& value, const char* text) {
    command.add_flag(name, value, text)->group("Arithmetic");
  };
  add_statistic_to(command);
  add_choice(command, "--residual-rounding", residual_rounding_, kResidualRoundings,
             "which value of x + residual is normalised");
  flag("--pdl-wait", pdl_wait_, "GPU: wait for the stream's previous kernel inside the kernel");
  flag("--pdl-trigger", pdl_trigger_, "GPU: let the stream's next kernel start early");
  flag("--no-pdl", no_pdl_, "GPU: neither, which are the default, but where these options ask");
  flag("--pdl-constant-weights", pdl_constant_weights_,
       "GPU, with --pdl-wait: weight and bias may be read before the wait");
  add_quant_to(command);
  add_choice(command, "--scale-layout", scale_layout_, kScaleLayouts, "order of the scales");
}

void separate_backward(CLI::App& command, CLI::Option* flag,
                       const std::vector<std::string>& shared) {
  const std::vector<std::string> arithmetic = {"--help",        "--kind",     "--eps",
                                               "--rounding",    "--pdl-wait", "--weight-offset",
                                               "--pdl-trigger", "--no-pdl"};
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option == flag || has(shared, name) || has(arithmetic, name)) continue;
    option->get_group() == kBackwardGroup ? option->needs(flag) : option->excludes(flag);
  }
}

void NormOptions::add_statistic_to(CLI::App& command) {
  add_choice(command, "--kind", kind_, kKinds, "RMSNorm or LayerNorm");
  add_value(command, "--eps", eps_, "added to the mean square or variance, >= 0");
  add_value(command, "--weight-offset", weight_offset_, "added to the weight in f32; 1 for Gemma");
  add_choice(command, "--rounding", rounding_, kRoundings, "where y is rounded to x's dtype");
}

void NormOptions::add_quant_to(CLI::App& command) {
  add_choice(command, "--quant-scheme", quant_scheme_, kQuantSchemes, "how --quantized is scaled");
  add_number(command, "--quant-block-size", quant_block_size_,
             "columns of a scale block (per-block): 64 or 128", 0, INT32_MAX)
      ->group("Arithmetic");
  add_choice(command, "--quant-source", quant_source_, kQuantSources,
             "quantise the f32 result, or the result rounded to x's dtype");
  command.add_flag("--scale-pow2", scale_pow2_, "round dynamic fp8 scales up to a power of two")
      ->group("Arithmetic");
  add_value(command, "--amax-floor", amax_floor_,
            "least magnitude a dynamic scale is made from; 0 = 1e-10");
  add_value(command, "--clamp", clamp_, "clamp results to +-CLAMP before quantising; 0 = off");
  add_choice(command, "--quant-division", quant_division_, kQuantDivisions,
             "codes of z * (1 / scale), or of z / scale (per-tensor, per-row, per-block)");
  add_number(command, "--rotation", rotation_,
             "columns of a block that a Hadamard matrix multiplies before quantising: 16, 32, 64 "
             "or 128; 0 = none",
             0, INT32_MAX)
      ->group("Arithmetic");
  command.add_flag("--y-rotated", y_rotated_, "with --rotation: y is rotated, too")
      ->group("Arithmetic");
}

QuantTensors NormOptions::quant_tensors(const std::vector<int64_t>& shape) const {
  return tool::quant_tensors(value_of(kQuantSchemes, quant_scheme_), shape, quant_block_size_,
                             value_of(kScaleLayouts, scale_layout_));
}

void NormOptions::apply(fastnorm_norm_args* args, fastnorm_quant* quant) const {
  args->struct_size = sizeof *args;
  args->kind = value_of(kKinds, kind_);
  args->eps = eps_;
  args->weight_offset = weight_offset_;
  args->rounding = value_of(kRoundings, rounding_);
  args->residual_rounding = value_of(kResidualRoundings, residual_rounding_);
  args->flags = (pdl_wait_ ? uint32_t{FASTNORM_NORM_PDL_WAIT} : 0) |
                (pdl_trigger_ ? uint32_t{FASTNORM_NORM_PDL_TRIGGER} : 0) |
                (no_pdl_ ? uint32_t{FASTNORM_NORM_NO_PDL} : 0) |
                (pdl_constant_weights_ ? uint32_t{FASTNORM_NORM_PDL_CONSTANT_WEIGHTS} : 0);
  quant->struct_size = sizeof *quant;
  quant->scheme = value_of(kQuantSchemes, quant_scheme_);
  quant->block_size = quant_block_size_;
  quant->source = value_of(kQuantSources, quant_source_);
  quant->scale_layout = value_of(kScaleLayouts, scale_layout_);
  quant->scale_pow2 = scale_pow2_ ? 1 : 0;
  quant->amax_floor = amax_floor_;
  quant->clamp = clamp_;
  quant->division = value_of(kQuantDivisions, quant_division_);
  quant->rotation = rotation_;
  quant->y_rotated = y_rotated_ ? 1 : 0;
  args->quant = quant;
}

void NormOptions::apply(fastnorm_norm_backward_args* args) const {
  args->struct_size = sizeof *args;
  args->kind = value_of(kKinds, kind_);
  args->eps = eps_;
  args->weight_offset = weight_offset_;
  args->rounding = value_of(kRoundings, rounding_);
  args->flags = (pdl_wait_ ? uint32_t{FASTNORM_NORM_BACKWARD_PDL_WAIT} : 0) |
                (pdl_trigger_ ? uint32_t{FASTNORM_NORM_BACKWARD_PDL_TRIGGER} : 0) |
                (no_pdl_ ? uint32_t{FASTNORM_NORM_BACKWARD_NO_PDL} : 0);
}

}  // namespace fastnorm::tool
