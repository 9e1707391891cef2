// fastnorm run: one normalisation of tensors in a safetensors file.
#include "run.h"

#include <memory>

#include "commands.h"
#include "dtype.h"
#include "help.h"
#include "shape.h"

namespace fastnorm::tool {
namespace {

// The statistics of groups. A group size that the library will refuse counts as none.
std::vector<int64_t> group_shape(int64_t size, const std::vector<int64_t>& shape,
                                 std::vector<int64_t> rows) {
  if (size <= 0 || shape.back() % size != 0 || shape.back() == size) return rows;
  if (shape.size() == 1) rows.clear();
  rows.push_back(shape.back() / size);
  return rows;
}

void make_outputs(const RunOptions& o, Operands* operands) {
  const Operand& x = *operands->find("x");
  const Operand* const residual = operands->find("residual");
  const std::vector<int64_t>& shape = x.shape;
  // A single row has no leading dimension. Its statistics are [1].
  std::vector<int64_t> rows = {1};
  if (shape.size() > 1) rows.assign(shape.begin(), shape.end() - 1);
  const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  const auto make = [&](const char* path, const char* option, fastnorm_dtype dtype,
                        const std::vector<int64_t>& extents, const Operand* over = nullptr) {
    operands->make(path, o.names.at(option), o.in_place ? over : nullptr, dtype, extents);
  };
  // --y may be left at its default; beside --quantized it is then not wanted.
  if (!o.names.has("--quantized") || o.names.at("--y") != "y")
    make("y", "--y", dtype_or(o.y_dtype, x.dtype), shape, &x);
  make("residual_out", "--residual-out",
       dtype_or(o.residual_out_dtype, residual != nullptr ? residual->dtype : fastnorm_dtype{}),
       shape, residual);
  const std::vector<int64_t> groups = group_shape(o.stages.group_size(), shape, rows);
  make("mean", "--mean", f32, groups);
  make("rstd", "--rstd", f32, groups);
  std::vector<int64_t> sums = groups;
  if (o.norm.is_layer()) sums.push_back(2);
  make("sumsq", "--sumsq", f32, sums);
  make("branch_rstd", "--branch-rstd", f32, rows);
  make("quant.amax", "--amax", f32, {1});
  const QuantTensors quant = o.norm.quant_tensors(shape);
  make("quant.quantized", "--quantized", dtype_or(o.quantized_dtype, quant.codes),
       quant.codes_shape);
  make("quant.scale", "--scale-out", dtype_or(o.scale_dtype, quant.scale),
       o.scale_shape.empty() ? quant.scale_shape : o.scale_shape);
}

void run_forward(const RunOptions& options) {
  Operands operands(options, "norm");
  operands.load_inputs();
  make_outputs(options, &operands);
  std::vector<std::string> outputs = {
      "y", "residual_out", "mean", "rstd", "quant.quantized", "quant.amax", "sumsq", "branch_rstd"};
  if (options.names.has("--scale-out")) outputs.push_back("quant.scale");
  operands.run<fastnorm_norm_args>(0, outputs);
}

// Two outputs of one name would overwrite each other in the file.
void check_names(const RunOptions& options) {
  const NamedTensors& names = options.names;
  if (options.backward && !names.has("--dy")) throw CLI::ValidationError("--backward needs --dy");
  const support::Call call(options.backward ? "norm_backward" : "norm");
  std::vector<std::string> used;
  for (const auto& [option, name] : names.all()) {
    const std::string path =
        option == "--scale-out" ? "quant.scale" : path_of(call.family(), option);
    if (name.empty() || path.empty() || option == "--scale") continue;
    if (!call.is_output(path) || (option == "--dx" && options.no_dx)) continue;
    for (const std::string& other : used) {
      if (name == other) throw CLI::ValidationError("two outputs are named '" + name + "'");
    }
    used.push_back(name);
  }
  if (!options.backward && names.has("--scale") && names.has("--scale-out"))
    throw CLI::ValidationError("--scale and --scale-out exclude each other");
}

const auto kDtypes = CLI::Validator(
    [](const std::string& name) {
      return find_dtype(name) != nullptr ? "" : "'" + name + "' is not a dtype";
    },
    "{" + dtype_names() + "}");

// Options of the backward pass. Those that both passes have are told by name.
void add_backward_options(CLI::App& command, RunOptions& options) {
  const auto add = [&](const char* name, const char* text) {
    return command.add_option(name, options.names[name], text)
        ->type_name("NAME")
        ->group(kBackwardGroup);
  };
  const auto dtype = [&](const char* name, std::string& value, const char* text) {
    command.add_option(name, value, text)->check(kDtypes)->group(kBackwardGroup);
  };
  CLI::Option* const flag = command.add_flag(
      "--backward", options.backward,
      "gradients: --x is what the forward normalised, --mean and --rstd are inputs");
  add("--dy", "gradient of y, shaped as x; needed");
  add("--dresidual-in", "gradient that reaches residual_out from elsewhere");
  add("--old-dweight", "what dweight is added to; dweight has its dtype");
  add("--old-dbias", "the same for dbias");
  add("--old-dbranch-weight", "the same for dbranch_weight");
  add("--old-dbranch-bias", "the same for dbranch_bias");
  add("--old-dresidual-gate", "the same for dresidual_gate");
  options.names["--dx"] = "dx";
  add("--dx", "gradient of x, output")->capture_default_str();
  command.add_flag("--no-dx", options.no_dx, "dx is not wanted")->group(kBackwardGroup);
  add("--dresidual", "the same gradient in another dtype, output");
  add("--dweight", "gradient of the weight, output");
  add("--dbias", "gradient of the bias, output; shaped as --bias, else as the weight");
  add("--dgate", "gradient of --gate, output; reads --bias");
  add("--branch", "the forward's x, where it added a residual");
  add("--branch-mean", "means of the branch, f32 (layer)");
  add("--dbranch", "gradient of the branch, output");
  add("--dbranch-weight", "gradient of --branch-weight, output");
  add("--dbranch-bias",
      "gradient of the branch's bias, output; shaped as --branch-bias, else as the weight");
  add("--dresidual-gate", "gradient of --residual-gate, output");
  dtype("--dx-dtype", options.dx_dtype, "default: x's");
  dtype("--dresidual-dtype", options.dresidual_dtype, "default: f32");
  dtype("--dweight-dtype", options.dweight_dtype, "f32 or the weight's; default: the weight's");
  dtype("--dbias-dtype", options.dbias_dtype,
        "default: that of --bias, else the weight's, else x's");
  dtype("--dgate-dtype", options.dgate_dtype, "x's or f32; default: the gate's");
  std::vector<std::string> of_both = {"IN",       "OUT",       "--x",        "--weight",
                                      "--bias",   "--mean",    "--rstd",     "--device",
                                      "--tuning", "--threads", "--in-place", "--json"};
  const std::vector<std::string> of_stages = StageOptions::of_backward(command);
  of_both.insert(of_both.end(), of_stages.begin(), of_stages.end());
  separate_backward(command, flag, of_both);
}

constexpr int64_t kMaxExtent = int64_t{1} << 31;  // of what an option says; files are checked

void add_tensor_options(CLI::App& command, RunOptions& options) {
  const auto input = [&](const char* name, const char* text) {
    return command.add_option(name, options.names[name], text)->type_name("NAME")->group("Inputs");
  };
  const auto output = [&](const char* name, const char* text) {
    return command.add_option(name, options.names[name], text)->type_name("NAME")->group("Outputs");
  };
  input("--x", "rows to normalise, [.., n] of f32, f16 or bf16")->required();
  input("--residual", "added to x first, shaped as x; f32, f16 or bf16");
  input("--weight", "[.., n], broadcasts against x; f32, f16 or bf16; default: 1");
  input("--bias", "as the weight; default: 0");
  input("--scale", "[1] f32, for --quant-scheme per-tensor");
  input("--global-scale", "[1] f32, for --quant-scheme nvfp4");
  input("--clamp-scale", "[1] f32, the clamp where it is > 0; instead of --clamp");
  input("--rotation-signs",
        "f32 of 1 and -1, [n] or [--rotation]; multiplies columns before the rotation; default: 1");
  options.names["--y"] = "y";
  output("--y", "the normalised rows")->capture_default_str();
  output("--residual-out", "x + residual; default: not stored");
  output("--mean", "mean of each row, f32 (layer); --backward: input");
  output("--rstd", "1 / sqrt(mean square or variance + eps) of each row, f32; --backward: input");
  output("--quantized", "the quantised rows");
  output("--scale-out", "their scales, for schemes that make them");
  output("--amax", "[1] f32, largest magnitude seen");
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
                  "f8_e4m3, f8_e5m2 or i8; default: f8_e4m3, and pairs in u8 for codes of 4 bits")
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
  options->stages.add_to(*command, &options->names);
  add_backward_options(*command, *options);
  set_examples(
      *command,
      {"fastnorm run in.safetensors out.safetensors --x hidden --weight gain",
       "fastnorm run in.safetensors out.safetensors --x hidden --residual residual \\",
       "    --residual-out residual --quant-scheme per-row --quantized q --scale-out s",
       "fastnorm run --backward in.safetensors out.safetensors --x hidden --dy dy --dx dx"});
  command->callback([options] {
    check_names(*options);
    options->backward ? run_backward(*options) : run_forward(*options);
  });
}

}  // namespace fastnorm::tool
