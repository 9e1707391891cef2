// fastnorm run: one normalisation of tensors in a safetensors file.
#include <cstdio>
#include <memory>

#include "commands.h"
#include "machine.h"
#include "norm_options.h"
#include "safetensors.h"

namespace fastnorm::tool {
namespace {

// Names of tensors: inputs in the input file, outputs in the output file. Empty = absent.
struct Names {
  std::string x, residual, weight, bias, global_scale, scale_in, clamp_scale;
  std::string y = "y", residual_out, mean, rstd, quantized, scale_out, amax;
};

struct RunOptions {
  std::string input, output, device = "cpu", tuning;
  Names names;
  std::string y_dtype, residual_out_dtype, quantized_dtype, scale_dtype;  // empty = the default
  std::vector<int64_t> scale_shape;
  bool in_place = false;
  int32_t threads = 1;
  NormOptions norm;
};

// A tensor of the call: its memory and its view, and for outputs the name to store it under.
struct Operand {
  std::string name;
  Block memory;
  std::byte* data = nullptr;
  fastnorm_dtype dtype = {};
  size_t bytes = 0;
  TensorView view;
};

size_t count_elements(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
  return count;
}

class Run {
 public:
  explicit Run(const RunOptions& options)
      : options_(options),
        names_(options.names),
        file_(options.input),
        machine_(parse_target(options.device), options.threads, options.tuning) {}

  void operator()() {
    load_inputs();
    make_outputs();
    machine_.run(args());
    store();
  }

 private:
  void load_inputs() {
    load(names_.x, &x_);
    load(names_.residual, &residual_);
    load(names_.weight, &weight_);
    load(names_.bias, &bias_);
    load(names_.global_scale, &global_scale_);
    load(names_.scale_in, &scale_);
    load(names_.clamp_scale, &clamp_scale_);
  }

  void load(const std::string& name, Operand* operand) {
    if (name.empty()) return;
    const StoredTensor& stored = file_.at(name);
    const DtypeName* dtype = find_safetensors_dtype(stored.dtype);
    if (dtype == nullptr) {
      throw CommandError(file_.path() + ": tensor '" + name + "' has dtype " + stored.dtype +
                         "; required: " + safetensors_dtype_names());
    }
    operand->name = name;
    place(operand, machine_.allocate(stored.content.size()), dtype->dtype, stored.shape);
    machine_.upload(operand->data, stored.content.data(), stored.content.size());
  }

  void place(Operand* operand, Block memory, fastnorm_dtype dtype, std::vector<int64_t> shape) {
    operand->data = memory.get();
    operand->memory = std::move(memory);
    operand->dtype = dtype;
    operand->bytes = count_elements(shape) * element_bytes(dtype);
    operand->view = TensorView(machine_.target(), operand->data, dtype, std::move(shape));
  }

  void make_outputs() {
    const std::vector<int64_t>& shape = x_.view.shape();
    // Of a single row, which has no leading dimension, the statistics are [1].
    std::vector<int64_t> rows = {1};
    if (shape.size() > 1) rows.assign(shape.begin(), shape.end() - 1);
    const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    const auto or_else = [](const std::string& name, fastnorm_dtype otherwise) {
      return name.empty() ? otherwise : find_dtype(name)->dtype;
    };
    if (names_.quantized.empty() || y_asked_for())
      make(names_.y, &y_, &x_, or_else(options_.y_dtype, x_.dtype), shape);
    make(names_.residual_out, &residual_out_, &residual_,
         or_else(options_.residual_out_dtype, residual_.dtype), shape);
    make(names_.mean, &mean_, nullptr, f32, rows);
    make(names_.rstd, &rstd_, nullptr, f32, rows);
    make(names_.amax, &amax_, nullptr, f32, {1});
    const QuantTensors quant = options_.norm.quant_tensors(shape);
    make(names_.quantized, &quantized_, nullptr, or_else(options_.quantized_dtype, quant.codes),
         quant.codes_shape);
    make(names_.scale_out, &scale_, nullptr, or_else(options_.scale_dtype, quant.scale),
         options_.scale_shape.empty() ? quant.scale_shape : options_.scale_shape);
  }

  // --y may be left at its default; beside --quantized it is then not wanted.
  bool y_asked_for() const { return names_.y != Names().y; }

  // in_place_of: the input whose memory is used with --in-place, where there is one.
  void make(const std::string& name, Operand* operand, const Operand* in_place_of,
            fastnorm_dtype dtype, const std::vector<int64_t>& shape) {
    if (name.empty()) return;
    operand->name = name;
    if (options_.in_place && in_place_of != nullptr && in_place_of->data != nullptr) {
      operand->data = in_place_of->data;
      operand->dtype = dtype;
      operand->bytes = count_elements(shape) * element_bytes(dtype);
      operand->view = TensorView(machine_.target(), operand->data, dtype, shape);
      return;
    }
    const size_t bytes = count_elements(shape) * element_bytes(dtype);
    place(operand, machine_.allocate(bytes), dtype, shape);
    const std::vector<std::byte> zeros(bytes);  // amax is combined into what is there
    machine_.upload(operand->data, zeros.data(), bytes);
  }

  fastnorm_norm_args args() {
    fastnorm_norm_args args = {};
    options_.norm.apply(&args);
    args.x = x_.view.get();
    args.residual = residual_.view.get();
    args.weight = weight_.view.get();
    args.bias = bias_.view.get();
    args.y = y_.view.get();
    args.residual_out = residual_out_.view.get();
    args.mean = mean_.view.get();
    args.rstd = rstd_.view.get();
    args.global_scale = global_scale_.view.get();
    args.quantized = quantized_.view.get();
    args.scale = scale_.view.get();
    args.amax = amax_.view.get();
    args.clamp_scale = clamp_scale_.view.get();
    return args;
  }

  void store() {
    std::vector<NewTensor> stored;
    for (Operand* operand : {&y_, &residual_out_, &mean_, &rstd_, &quantized_, &scale_, &amax_}) {
      if (operand->data == nullptr || (operand == &scale_ && names_.scale_out.empty())) continue;
      NewTensor t{operand->name, operand->dtype, operand->view.shape(), {}};
      t.content.resize(operand->bytes);
      machine_.download(t.content.data(), operand->data, operand->bytes);
      stored.push_back(std::move(t));
    }
    write_safetensors(options_.output, stored);
  }

  const RunOptions& options_;
  const Names& names_;
  SafetensorsFile file_;
  Machine machine_;
  Operand x_, residual_, weight_, bias_, global_scale_, clamp_scale_;
  Operand y_, residual_out_, mean_, rstd_, quantized_, scale_, amax_;
};

// Two outputs of one name would overwrite each other in the file.
void check_names(const Names& names) {
  std::vector<std::string> used;
  for (const std::string& name : {names.y, names.residual_out, names.mean, names.rstd,
                                  names.quantized, names.scale_out, names.amax}) {
    if (name.empty()) continue;
    for (const std::string& other : used) {
      if (name == other) throw CLI::ValidationError("two outputs are named '" + name + "'");
    }
    used.push_back(name);
  }
  if (!names.scale_in.empty() && !names.scale_out.empty()) {
    throw CLI::ValidationError("--scale and --scale-out exclude each other");
  }
}

constexpr int64_t kMaxExtent = int64_t{1} << 31;  // of what an option says; files are checked

void add_tensor_options(CLI::App& command, RunOptions& options) {
  const auto input = [&](const char* name, std::string& value, const char* text) {
    return command.add_option(name, value, text)->type_name("NAME")->group("Inputs");
  };
  const auto output = [&](const char* name, std::string& value, const char* text) {
    return command.add_option(name, value, text)->type_name("NAME")->group("Outputs");
  };
  const auto dtypes = CLI::Validator(
      [](const std::string& name) {
        return find_dtype(name) != nullptr ? "" : "'" + name + "' is not a dtype";
      },
      "DTYPE");
  Names& names = options.names;
  input("--x", names.x, "rows to normalise, [.., n] of f32, f16 or bf16")->required();
  input("--residual", names.residual, "added to x first, shaped as x; f32, f16 or bf16");
  input("--weight", names.weight, "[.., n], broadcasts against x; f32, f16 or bf16; default: 1");
  input("--bias", names.bias, "as the weight; default: 0");
  input("--scale", names.scale_in, "[1] f32, for --quant-scheme per-tensor");
  input("--global-scale", names.global_scale, "[1] f32, for --quant-scheme nvfp4");
  input("--clamp-scale", names.clamp_scale,
        "[1] f32, the clamp where it is > 0; instead of --clamp");
  output("--y", names.y, "the normalised rows")->capture_default_str();
  output("--residual-out", names.residual_out, "x + residual; default: not stored");
  output("--mean", names.mean, "mean of each row, f32 (layer)");
  output("--rstd", names.rstd, "1 / sqrt(mean square or variance + eps) of each row, f32");
  output("--quantized", names.quantized, "the quantised rows");
  output("--scale-out", names.scale_out, "their scales, for schemes that make them");
  output("--amax", names.amax, "[1] f32, largest magnitude seen");
  command.add_option("--y-dtype", options.y_dtype, "x's dtype or f32; default: x's")
      ->check(dtypes)
      ->group("Outputs");
  command
      .add_option("--residual-out-dtype", options.residual_out_dtype,
                  "f32, f16 or bf16; default: the residual's")
      ->check(dtypes)
      ->group("Outputs");
  command
      .add_option("--quantized-dtype", options.quantized_dtype,
                  "f8_e4m3, f8_e5m2 or i8; default: f8_e4m3, and pairs in u8 for nvfp4 and mxfp4")
      ->check(dtypes)
      ->group("Outputs");
  command
      .add_option("--scale-dtype", options.scale_dtype,
                  "f32, f8_e8m0, f8_e4m3 or u8; default: what the scheme has")
      ->check(dtypes)
      ->group("Outputs");
  command
      .add_option("--scale-shape", options.scale_shape,
                  "such as 4096,32; default: what the scheme has")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{0}, kMaxExtent))
      ->group("Outputs");
}

}  // namespace

void add_run(CLI::App& program) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command =
      program.add_subcommand("run", "Normalise tensors of a safetensors file into another");
  command->add_option("IN", options->input, "safetensors file to read")->required();
  command->add_option("OUT", options->output, "safetensors file to write")->required();
  add_tensor_options(*command, *options);
  command->add_option("--device", options->device, "cpu or cuda:N")
      ->check(CLI::Validator(check_device, "DEVICE"))
      ->capture_default_str();
  add_tuning_option(*command, &options->tuning);
  command->add_option("--threads", options->threads, "CPU threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--in-place", options->in_place,
                    "write y over x and residual_out over residual (in memory, not in the file)");
  options->norm.add_to(*command);
  command->callback([options] {
    check_names(options->names);
    Run run(*options);
    run();
  });
}

}  // namespace fastnorm::tool
