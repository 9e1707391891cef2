#include "norm_options.h"

#include <algorithm>
#include <vector>

#include "bench_case.h"
#include "dtype.h"
#include "shape.h"

namespace fastnorm::tool {

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
  add_statistic_to(command);
  fields_.choice(command, "--residual-rounding", {"exact", "before-apply", "before-statistics"},
                 "which value of x + residual is normalised");
  fields_.bit(command, "--pdl-wait", FASTNORM_NORM_PDL_WAIT,
              "GPU: wait for the stream's previous kernel inside the kernel");
  fields_.bit(command, "--pdl-trigger", FASTNORM_NORM_PDL_TRIGGER,
              "GPU: let the stream's next kernel start early");
  fields_.bit(command, "--no-pdl", FASTNORM_NORM_NO_PDL,
              "GPU: neither, which are the default, but where these options ask");
  fields_.bit(command, "--pdl-constant-weights", FASTNORM_NORM_PDL_CONSTANT_WEIGHTS,
              "GPU, with --pdl-wait: weight and bias may be read before the wait");
  add_quant_to(command);
  fields_.choice(command, "--scale-layout", "order of the scales");
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
  fields_.choice(command, "--kind", "RMSNorm or LayerNorm");
  fields_.number(command, "--eps", 1e-6f, "added to the mean square or variance, >= 0");
  fields_.number(command, "--weight-offset", 0.0f, "added to the weight in f32; 1 for Gemma");
  fields_.choice(command, "--rounding", "where y is rounded to x's dtype");
}

void NormOptions::add_quant_to(CLI::App& command) {
  fields_.choice(command, "--quant-scheme", "how --quantized is scaled");
  fields_.number(command, "--quant-block-size", 0,
                 "columns of a scale block (per-block): 64 or 128", 0, INT32_MAX);
  fields_.choice(command, "--quant-source",
                 "quantise the f32 result, or the result rounded to x's dtype");
  fields_.flag(command, "--scale-pow2", "round dynamic fp8 scales up to a power of two");
  fields_.number(command, "--amax-floor", 0.0f,
                 "least magnitude a dynamic scale is made from; 0 = 1e-10");
  fields_.number(command, "--clamp", 0.0f, "clamp results to +-CLAMP before quantising; 0 = off");
  fields_.choice(command, "--quant-division", {"reciprocal", "divide"},
                 "codes of z * (1 / scale), or of z / scale (per-tensor, per-row, per-block)");
  fields_.number(command, "--rotation", 0,
                 "columns of a block that a Hadamard matrix multiplies before quantising: 16, 32, "
                 "64 or 128; 0 = none",
                 0, INT32_MAX);
  fields_.flag(command, "--y-rotated", "with --rotation: y is rotated, too");
}

fastnorm_quant_scheme NormOptions::scheme() const {
  return static_cast<fastnorm_quant_scheme>(fields_.number_of("--quant-scheme"));
}

QuantTensors NormOptions::quant_tensors(const std::vector<int64_t>& shape) const {
  return tool::quant_tensors(
      scheme(), shape, static_cast<int32_t>(fields_.whole("--quant-block-size")),
      static_cast<fastnorm_scale_layout>(fields_.number_of("--scale-layout")));
}

support::Call NormOptions::call() const {
  support::Call call("norm quant.scheme=none");
  call.change(fields_.words(call.family()) + " flags=" + std::to_string(fields_.flags()));
  return call;
}

}  // namespace fastnorm::tool
