// fastnorm run: one normalisation of tensors in a safetensors file.
#include "run.h"

#include <cstdio>
#include <memory>

#include "commands.h"
#include "dtype.h"
#include "help.h"
#include "shape.h"

namespace fastnorm::tool {
namespace {

class Run {
 public:
  explicit Run(const RunOptions& options)
      : options_(options),
        names_(options.names),
        machine_(parse_target(options.device), options.threads, options.tuning),
        operands_(options.input, machine_) {}

  void operator()() {
    load_inputs();
    make_outputs();
    const fastnorm_info info = machine_.run(args());
    tell_run(options_, machine_, info, store());
  }

 private:
  void load_inputs() {
    operands_.load(names_.x, &x_);
    operands_.load(names_.residual, &residual_);
    operands_.load(names_.weight, &weight_);
    operands_.load(names_.bias, &bias_);
    operands_.load(names_.global_scale, &global_scale_);
    operands_.load(names_.scale_in, &scale_);
    operands_.load(names_.clamp_scale, &clamp_scale_);
    operands_.load(names_.rotation_signs, &rotation_signs_);
    const StageOptions& s = options_.stages;
    operands_.load(s.gate, &gate_);
    operands_.load(s.mean_in, &mean_in_);
    operands_.load(s.rstd_in, &rstd_in_);
    operands_.load(s.branch_weight, &branch_weight_);
    operands_.load(s.branch_bias, &branch_bias_);
    operands_.load(s.sum_scale, &sum_scale_);
    operands_.load(s.residual_gate, &residual_gate_);
    operands_.load(s.residual_gate_table, &residual_gate_table_);
    operands_.load(s.modulation_scale, &modulation_scale_);
    operands_.load(s.scale_table, &scale_table_);
    operands_.load(s.modulation_shift, &modulation_shift_);
    operands_.load(s.shift_table, &shift_table_);
    operands_.load(s.modulation_index, &modulation_index_);
  }

  void make_outputs() {
    const std::vector<int64_t>& shape = x_.view.shape();
    // Of a single row, which has no leading dimension, the statistics are [1].
    std::vector<int64_t> rows = {1};
    if (shape.size() > 1) rows.assign(shape.begin(), shape.end() - 1);
    const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    if (names_.quantized.empty() || y_asked_for())
      make(names_.y, &y_, &x_, dtype_or(options_.y_dtype, x_.dtype), shape);
    make(names_.residual_out, &residual_out_, &residual_,
         dtype_or(options_.residual_out_dtype, residual_.dtype), shape);
    const std::vector<int64_t> groups = group_shape(shape, rows);
    make(names_.mean, &mean_, nullptr, f32, groups);
    make(names_.rstd, &rstd_, nullptr, f32, groups);
    std::vector<int64_t> sums = groups;
    if (options_.norm.is_layer()) sums.push_back(2);
    make(options_.stages.sumsq, &sumsq_, nullptr, f32, sums);
    make(options_.stages.branch_rstd, &branch_rstd_, nullptr, f32, rows);
    make(names_.amax, &amax_, nullptr, f32, {1});
    const QuantTensors quant = options_.norm.quant_tensors(shape);
    make(names_.quantized, &quantized_, nullptr, dtype_or(options_.quantized_dtype, quant.codes),
         quant.codes_shape);
    make(names_.scale_out, &scale_, nullptr, dtype_or(options_.scale_dtype, quant.scale),
         options_.scale_shape.empty() ? quant.scale_shape : options_.scale_shape);
  }

  // The statistics of groups. A group size that the library will refuse counts as none.
  std::vector<int64_t> group_shape(const std::vector<int64_t>& shape,
                                   std::vector<int64_t> rows) const {
    const int64_t size = options_.stages.group_size;
    if (size <= 0 || shape.back() % size != 0 || shape.back() == size) return rows;
    if (shape.size() == 1) rows.clear();
    rows.push_back(shape.back() / size);
    return rows;
  }

  // --y may be left at its default; beside --quantized it is then not wanted.
  bool y_asked_for() const { return names_.y != Names().y; }

  // in_place_of: the input whose memory is used with --in-place, where there is one.
  void make(const std::string& name, Operand* operand, const Operand* in_place_of,
            fastnorm_dtype dtype, const std::vector<int64_t>& shape) {
    operands_.make(name, operand, options_.in_place ? in_place_of : nullptr, dtype, shape);
  }

  fastnorm_norm_args args() {
    fastnorm_norm_args args = {};
    options_.norm.apply(&args, &quant_);
    args.x = x_.view.get();
    args.residual = residual_.view.get();
    args.weight = weight_.view.get();
    args.bias = bias_.view.get();
    args.y = y_.view.get();
    args.residual_out = residual_out_.view.get();
    args.mean = mean_.view.get();
    args.rstd = rstd_.view.get();
    quant_.global_scale = global_scale_.view.get();
    quant_.quantized = quantized_.view.get();
    quant_.scale = scale_.view.get();
    quant_.amax = amax_.view.get();
    quant_.clamp_scale = clamp_scale_.view.get();
    quant_.rotation_signs = rotation_signs_.view.get();
    options_.stages.apply(&args);
    args.gate = gate_.view.get();
    args.sumsq = sumsq_.view.get();
    args.mean_in = mean_in_.view.get();
    args.rstd_in = rstd_in_.view.get();
    args.branch_weight = branch_weight_.view.get();
    args.branch_bias = branch_bias_.view.get();
    args.branch_rstd = branch_rstd_.view.get();
    args.sum_scale = sum_scale_.view.get();
    args.residual_gate = residual_gate_.view.get();
    args.residual_gate_table = residual_gate_table_.view.get();
    args.modulation_scale = modulation_scale_.view.get();
    args.scale_table = scale_table_.view.get();
    args.modulation_shift = modulation_shift_.view.get();
    args.shift_table = shift_table_.view.get();
    args.modulation_index = modulation_index_.view.get();
    return args;
  }

  Json store() {
    std::vector<Operand*> outputs = {&y_,         &residual_out_, &mean_,  &rstd_,
                                     &quantized_, &amax_,         &sumsq_, &branch_rstd_};
    if (!names_.scale_out.empty()) outputs.push_back(&scale_);
    return operands_.store(options_.output, outputs);
  }

  const RunOptions& options_;
  const Names& names_;
  Machine machine_;
  Operands operands_;
  Operand x_, residual_, weight_, bias_, global_scale_, clamp_scale_, rotation_signs_;
  Operand gate_, mean_in_, rstd_in_, branch_weight_, branch_bias_, sum_scale_, residual_gate_,
      residual_gate_table_, modulation_scale_, scale_table_, modulation_shift_, shift_table_,
      modulation_index_, sumsq_, branch_rstd_;
  Operand y_, residual_out_, mean_, rstd_, quantized_, scale_, amax_;
  fastnorm_quant quant_ = {};  // args() points to it
};

// Two outputs of one name would overwrite each other in the file.
void check_outputs(const std::vector<std::string>& names) {
  std::vector<std::string> used;
  for (const std::string& name : names) {
    if (name.empty()) continue;
    for (const std::string& other : used) {
      if (name == other) throw CLI::ValidationError("two outputs are named '" + name + "'");
    }
    used.push_back(name);
  }
}

void check_names(const RunOptions& options) {
  const Names& names = options.names;
  const BackwardNames& gradients = options.gradients;
  if (options.backward) {
    if (gradients.dy.empty()) throw CLI::ValidationError("--backward needs --dy");
    const std::string dx = options.no_dx ? std::string() : gradients.dx;
    return check_outputs({dx, gradients.dresidual, gradients.dweight, gradients.dbias,
                          gradients.dgate, gradients.dbranch, gradients.dbranch_weight,
                          gradients.dbranch_bias, gradients.dresidual_gate});
  }
  std::vector<std::string> outputs = options.stages.outputs();
  outputs.insert(outputs.end(), {names.y, names.residual_out, names.mean, names.rstd,
                                 names.quantized, names.scale_out, names.amax});
  check_outputs(outputs);
  if (!names.scale_in.empty() && !names.scale_out.empty()) {
    throw CLI::ValidationError("--scale and --scale-out exclude each other");
  }
}

const auto kDtypes = CLI::Validator(
    [](const std::string& name) {
      return find_dtype(name) != nullptr ? "" : "'" + name + "' is not a dtype";
    },
    "{" + dtype_names() + "}");

// Options of the backward pass. Those that both passes have are told by name.
void add_backward_options(CLI::App& command, RunOptions& options) {
  const auto add = [&](const char* name, std::string& value, const char* text) {
    return command.add_option(name, value, text)->type_name("NAME")->group(kBackwardGroup);
  };
  const auto dtype = [&](const char* name, std::string& value, const char* text) {
    command.add_option(name, value, text)->check(kDtypes)->group(kBackwardGroup);
  };
  BackwardNames& names = options.gradients;
  CLI::Option* const flag = command.add_flag(
      "--backward", options.backward,
      "gradients: --x is what the forward normalised, --mean and --rstd are inputs");
  add("--dy", names.dy, "gradient of y, shaped as x; needed");
  add("--dresidual-in", names.dresidual_in, "gradient that reaches residual_out from elsewhere");
  add("--old-dweight", names.old_dweight, "what dweight is added to; dweight has its dtype");
  add("--old-dbias", names.old_dbias, "the same for dbias");
  add("--old-dbranch-weight", names.old_dbranch_weight, "the same for dbranch_weight");
  add("--old-dbranch-bias", names.old_dbranch_bias, "the same for dbranch_bias");
  add("--old-dresidual-gate", names.old_dresidual_gate, "the same for dresidual_gate");
  add("--dx", names.dx, "gradient of x, output")->capture_default_str();
  command.add_flag("--no-dx", options.no_dx, "dx is not wanted")->group(kBackwardGroup);
  add("--dresidual", names.dresidual, "the same gradient in another dtype, output");
  add("--dweight", names.dweight, "gradient of the weight, output");
  add("--dbias", names.dbias, "gradient of the bias, output; shaped as --bias, else as the weight");
  add("--dgate", names.dgate, "gradient of --gate, output; reads --bias");
  add("--branch", names.branch, "the forward's x, where it added a residual");
  add("--branch-mean", names.branch_mean, "means of the branch, f32 (layer)");
  add("--dbranch", names.dbranch, "gradient of the branch, output");
  add("--dbranch-weight", names.dbranch_weight, "gradient of --branch-weight, output");
  add("--dbranch-bias", names.dbranch_bias,
      "gradient of the branch's bias, output; shaped as --branch-bias, else as the weight");
  add("--dresidual-gate", names.dresidual_gate, "gradient of --residual-gate, output");
  dtype("--dx-dtype", options.dx_dtype, "default: x's");
  dtype("--dresidual-dtype", options.dresidual_dtype, "default: f32");
  dtype("--dweight-dtype", options.dweight_dtype, "f32 or the weight's; default: the weight's");
  dtype("--dbias-dtype", options.dbias_dtype,
        "default: that of --bias, else the weight's, else x's");
  dtype("--dgate-dtype", options.dgate_dtype, "x's or f32; default: the gate's");
  std::vector<std::string> of_both = {"IN",       "OUT",       "--x",        "--weight",
                                      "--bias",   "--mean",    "--rstd",     "--device",
                                      "--tuning", "--threads", "--in-place", "--json"};
  const std::vector<std::string>& of_stages = StageOptions::of_backward();
  of_both.insert(of_both.end(), of_stages.begin(), of_stages.end());
  separate_backward(command, flag, of_both);
}

constexpr int64_t kMaxExtent = int64_t{1} << 31;  // of what an option says; files are checked

void add_tensor_options(CLI::App& command, RunOptions& options) {
  const auto input = [&](const char* name, std::string& value, const char* text) {
    return command.add_option(name, value, text)->type_name("NAME")->group("Inputs");
  };
  const auto output = [&](const char* name, std::string& value, const char* text) {
    return command.add_option(name, value, text)->type_name("NAME")->group("Outputs");
  };
  Names& names = options.names;
  input("--x", names.x, "rows to normalise, [.., n] of f32, f16 or bf16")->required();
  input("--residual", names.residual, "added to x first, shaped as x; f32, f16 or bf16");
  input("--weight", names.weight, "[.., n], broadcasts against x; f32, f16 or bf16; default: 1");
  input("--bias", names.bias, "as the weight; default: 0");
  input("--scale", names.scale_in, "[1] f32, for --quant-scheme per-tensor");
  input("--global-scale", names.global_scale, "[1] f32, for --quant-scheme nvfp4");
  input("--clamp-scale", names.clamp_scale,
        "[1] f32, the clamp where it is > 0; instead of --clamp");
  input("--rotation-signs", names.rotation_signs,
        "f32 of 1 and -1, [n] or [--rotation]; multiplies columns before the rotation; default: 1");
  output("--y", names.y, "the normalised rows")->capture_default_str();
  output("--residual-out", names.residual_out, "x + residual; default: not stored");
  output("--mean", names.mean, "mean of each row, f32 (layer); --backward: input");
  output("--rstd", names.rstd,
         "1 / sqrt(mean square or variance + eps) of each row, f32; --backward: input");
  output("--quantized", names.quantized, "the quantised rows");
  output("--scale-out", names.scale_out, "their scales, for schemes that make them");
  output("--amax", names.amax, "[1] f32, largest magnitude seen");
  command.add_option("--y-dtype", options.y_dtype, "x's dtype or f32; default: x's")
      ->check(kDtypes)
      ->group("Outputs");
  command
      .add_option("--residual-out-dtype", options.residual_out_dtype,
                  "f32, f16 or bf16; default: the residual's")
      ->check(kDtypes)
      ->group("Outputs");
  command
      .add_option("--quantized-dtype", options.quantized_dtype,
                  "f8_e4m3, f8_e5m2 or i8; default: f8_e4m3, and pairs in u8 for nvfp4 and mxfp4")
      ->check(kDtypes)
      ->group("Outputs");
  command
      .add_option("--scale-dtype", options.scale_dtype,
                  "f32, f8_e8m0, f8_e4m3 or u8; default: what the scheme has")
      ->check(kDtypes)
      ->group("Outputs");
  add_sizes(command, "--scale-shape", options.scale_shape,
            "such as 4096x32; default: what the scheme has", {0, kMaxExtent})
      ->group("Outputs");
}

}  // namespace

void add_run(CLI::App& program) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = program.add_subcommand(
      "run", "Normalise tensors of a safetensors file into another, or compute gradients");
  command->add_option("IN", options->input, "safetensors file to read")
      ->required()
      ->type_name("FILE");
  command->add_option("OUT", options->output, "safetensors file to write")
      ->required()
      ->type_name("FILE");
  add_tensor_options(*command, *options);
  add_device_option(*command, &options->device, false);
  add_tuning_option(*command, &options->tuning);
  add_threads_option(*command, &options->threads);
  command->add_flag("--in-place", options->in_place,
                    "write y over x and residual_out over residual (in memory, not in the file); "
                    "--backward: dx over dy, dgate over the gate, dbranch over the branch");
  command->add_flag("--json", options->json, "print JSON: the kernel, and what was written");
  options->norm.add_to(*command);
  options->stages.add_to(*command);
  add_backward_options(*command, *options);
  set_examples(
      *command,
      {"fastnorm run in.safetensors out.safetensors --x hidden --weight gain",
       "fastnorm run in.safetensors out.safetensors --x hidden --residual residual \\",
       "    --residual-out residual --quant-scheme per-row --quantized q --scale-out s",
       "fastnorm run --backward in.safetensors out.safetensors --x hidden --dy dy --dx dx"});
  command->callback([options] {
    check_names(*options);
    if (options->backward) return run_backward(*options);
    Run run(*options);
    run();
  });
}

}  // namespace fastnorm::tool
