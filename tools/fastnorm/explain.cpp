// fastnorm explain: what a call would do, without memory and without a GPU.
#include "explain.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "commands.h"
#include "dtype.h"
#include "explain.h"
#include "help.h"
#include "json.h"
#include "progress.h"
#include "shape.h"

namespace fastnorm::tool {

namespace {

// The tensors of a call's stages.
class PretendedStages {
 public:
  PretendedStages(const ExplainOptions& options, Pretended* pretended) : options_(options) {
    const StageOptions& s = options.stages;
    const fastnorm_dtype dtype = find_dtype(options.dtype)->dtype,
                         f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32),
                         parameters = dtype_or(options.parameter_dtype, dtype);
    const int64_t n = options.shape.back();
    const std::vector<int64_t> rows = pretended->row_shape(), groups = pretended->group_shape();
    std::vector<int64_t> sums = groups;
    if (options.norm.is_layer()) sums.push_back(2);
    const auto make = [&](const std::string& asked, TensorView* view, fastnorm_dtype of,
                          const std::vector<int64_t>& shape) {
      if (!asked.empty()) *view = pretended->tensor(of, shape);
    };
    if (!s.gate.empty()) gate_ = pretended->rows(dtype);
    make(s.mean_in, &mean_in_, f32, groups);
    make(s.rstd_in, &rstd_in_, f32, groups);
    make(s.sumsq, &sumsq_, f32, sums);
    make(s.branch_weight, &branch_weight_, parameters, {n});
    make(s.branch_bias, &branch_bias_, parameters, {n});
    make(s.branch_rstd, &branch_rstd_, f32, rows);
    make(s.sum_scale, &sum_scale_, f32, {1});
    make(s.modulation_index, &modulation_index_, fastnorm_dtype_of(FASTNORM_DTYPE_I32), rows);
    const auto modulator = [&](const char* option, const std::string& shape, TensorView* view,
                               const std::string& asked, TensorView* table) {
      if (!shape.empty()) *view = pretended->tensor(parameters, parse_sizes(option, shape, {}));
      make(asked, table, parameters, {n});
    };
    modulator("--residual-gate", s.residual_gate, &residual_gate_, s.residual_gate_table,
              &residual_gate_table_);
    modulator("--modulation-scale", s.modulation_scale, &modulation_scale_, s.scale_table,
              &scale_table_);
    modulator("--modulation-shift", s.modulation_shift, &modulation_shift_, s.shift_table,
              &shift_table_);
  }

  void apply(fastnorm_norm_args* args) {
    options_.stages.apply(args);
    args->gate = gate_.get();
    args->mean_in = mean_in_.get();
    args->rstd_in = rstd_in_.get();
    args->sumsq = sumsq_.get();
    args->branch_weight = branch_weight_.get();
    args->branch_bias = branch_bias_.get();
    args->branch_rstd = branch_rstd_.get();
    args->sum_scale = sum_scale_.get();
    args->residual_gate = residual_gate_.get();
    args->residual_gate_table = residual_gate_table_.get();
    args->modulation_scale = modulation_scale_.get();
    args->scale_table = scale_table_.get();
    args->modulation_shift = modulation_shift_.get();
    args->shift_table = shift_table_.get();
    args->modulation_index = modulation_index_.get();
  }

 private:
  const ExplainOptions& options_;
  TensorView gate_, mean_in_, rstd_in_, sumsq_, branch_weight_, branch_bias_, branch_rstd_,
      sum_scale_, residual_gate_, residual_gate_table_, modulation_scale_, scale_table_,
      modulation_shift_, shift_table_, modulation_index_;
};

// The tensors of a call and its arguments, which point at them.
class Question {
 public:
  Question(const ExplainOptions& options, const Target& target)
      : options_(options), pretended_(options, target), stages_(options, &pretended_) {
    const fastnorm_dtype dtype = find_dtype(options.dtype)->dtype;
    const fastnorm_dtype parameters = dtype_or(options.parameter_dtype, dtype);
    const fastnorm_dtype residual = dtype_or(options.residual_dtype, dtype);
    const fastnorm_dtype sums = dtype_or(options.residual_out_dtype, residual);
    const fastnorm_dtype y = dtype_or(options.y_dtype, dtype);
    const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);

    x_ = pretended_.rows(dtype);
    y_ = options.in_place ? pretended_.rows_over(x_, y) : pretended_.rows(y);
    if (options.residual) residual_ = pretended_.rows(residual);
    if (options.residual_out) {
      residual_out_ =
          options.in_place ? pretended_.rows_over(residual_, sums) : pretended_.rows(sums);
    }
    if (!options.no_weight) weight_ = pretended_.parameters(parameters);
    if (options.bias) bias_ = pretended_.parameters(dtype_or(options.bias_dtype, parameters));
    if (options.statistics) rstd_ = pretended_.values(f32);
    if (options.norm.quantises()) {
      const QuantTensors quant = options.norm.quant_tensors(options.shape);
      quantized_ = pretended_.tensor(quant.codes, quant.codes_shape);
      scale_ = pretended_.tensor(quant.scale, quant.scale_shape);
    }
    if (options.clamp_scale) clamp_scale_ = pretended_.tensor(f32, {1});
    if (options.rotation_signs) signs_ = pretended_.tensor(f32, {options.shape.back()});
  }

  fastnorm_norm_args args() {
    fastnorm_norm_args args = {};
    options_.norm.apply(&args, &quant_);
    args.x = x_.get();
    args.residual = residual_.get();
    args.weight = weight_.get();
    args.bias = bias_.get();
    args.y = y_.get();
    args.residual_out = residual_out_.get();
    args.rstd = rstd_.get();
    quant_.quantized = quantized_.get();
    quant_.scale = scale_.get();
    quant_.clamp_scale = clamp_scale_.get();
    quant_.rotation_signs = signs_.get();
    stages_.apply(&args);
    return args;
  }

 private:
  const ExplainOptions& options_;
  Pretended pretended_;
  PretendedStages stages_;
  TensorView x_, residual_, weight_, bias_, y_, residual_out_, rstd_, quantized_, scale_,
      clamp_scale_, signs_;
  fastnorm_quant quant_ = {};  // args() points to it
};

fastnorm_info query_forward(fastnorm_context* context, const ExplainOptions& options,
                            const Target& target) {
  Question question(options, target);
  const fastnorm_norm_args args = question.args();
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_query(context, &args, &info));
  return info;
}

Json to_json(const fastnorm_info& info, bool cuda) {
  Json json = {{"kernel", info.kernel},
               {"launches", info.launches},
               {"workspace_bytes", info.workspace_bytes},
               {"bytes_read", info.bytes_read},
               {"bytes_written", info.bytes_written},
               {"vector_bytes", info.vector_bytes}};
  if (cuda) {
    json["threads_per_row"] = info.threads_per_row;
    json["vectors_per_thread"] = info.vectors_per_thread;
    json["rows_per_block"] = info.rows_per_block;
    json["blocks_per_row"] = info.blocks_per_row;
    json["blocks"] = info.blocks;
    json["kind"] = info.kind;
    json["choice"] = info.choice;
    json["variant"] = info.variant;
    const std::string launched = backward_launches(info);
    if (!launched.empty()) json["launched"] = launched;
  } else {
    json["rows_per_range"] = info.rows_per_block;
    json["ranges"] = info.blocks;
  }
  return json;
}

void print_text(const fastnorm_info& info, bool cuda) {
  const auto line = [](const char* label, const std::string& text) {
    std::printf("%-18s %s\n", label, text.c_str());
  };
  const auto number = [](auto value) { return std::to_string(value); };
  line("kernel", info.launches == 0 ? "none: there are no rows" : info.kernel);
  const std::string launched = backward_launches(info);
  line("launches", number(info.launches) + (launched.empty() ? "" : ": " + launched));
  if (cuda) {
    line("threads per row", number(info.threads_per_row));
    line("row held in", info.vectors_per_thread == 0
                            ? "no registers: the row is streamed"
                            : number(info.vectors_per_thread) + " vectors of 16 bytes a thread");
    line("rows per block", number(info.rows_per_block));
    line("blocks per row", number(info.blocks_per_row));
    line(info.launches > 1 ? "grids" : "grid", number(info.blocks) + " blocks");
  } else {
    line("threads", number(info.blocks) + " at the most");
    line("another thread for", number(info.rows_per_block) + " rows");
  }
  line("widest access", number(info.vector_bytes) + " bytes");
  line("workspace", number(info.workspace_bytes) + " bytes");
  line("reads", number(info.bytes_read) + " bytes");
  line("writes", number(info.bytes_written) + " bytes");
  // The lines of data that decided: kinds of call with one list, its line, the kernel's line.
  if (*info.choice != '\0') {
    line("kind of call", info.kind);
    line("choice", info.choice);
  }
  if (*info.variant != '\0') line("kernel's line", info.variant);
}

// The generation of "sm_90", "sm_86" and so on, 9 and 8; 0 for PTX and for later ones, which have
// no kernels but those of PTX anywhere.
int generation_of(const std::string& arch) {
  if (arch.rfind("sm_", 0) != 0) return 0;
  const int generation = std::atoi(arch.c_str() + std::strlen("sm_")) / 10;
  return generation <= 10 || generation == 12 ? generation : 0;
}

// False for a GPU that is planned for without kernels of its generation in this build.
bool has_kernels(const std::string& device) {
  if (device.rfind("sm_", 0) != 0) return true;
  fastnorm_kernel_info kernel = {};
  kernel.struct_size = sizeof kernel;
  for (int32_t i = 0; i < fastnorm_kernel_count(); ++i) {
    check(fastnorm_kernel_describe(i, &kernel));
    const std::string arch = kernel.arch;
    const bool gpu = arch.rfind("sm_", 0) == 0 || arch.rfind("ptx_", 0) == 0;
    if (gpu && generation_of(arch) == generation_of(device)) return true;
  }
  return false;
}

void run_explain(const ExplainOptions& options) {
  const Target target = parse_target(options.device);
  const ContextPtr context = make_context(target, options.threads, options.tuning);
  const fastnorm_info info = options.backward ? query_backward(context.get(), options, target)
                                              : query_forward(context.get(), options, target);
  tell_plan(info, options.device, options.json);
}

void check_combination(const ExplainOptions& options) {
  if (options.backward && options.no_dx && options.in_place) {
    throw CLI::ValidationError("--in-place needs dx; remove --no-dx");
  }
  if (options.residual_out && options.in_place && !options.residual) {
    throw CLI::ValidationError("--residual-out --in-place needs --residual");
  }
}

void add_backward_options(CLI::App& command, ExplainOptions& options) {
  const CLI::IsMember row_dtypes(row_dtype_names());
  const auto flag = [&](const char* name, bool& value, const char* text) {
    command.add_flag(name, value, text)->group(kBackwardGroup);
  };
  const auto dtype = [&](const char* name, std::string& value, const char* text) {
    command.add_option(name, value, text)->check(row_dtypes)->group(kBackwardGroup);
  };
  CLI::Option* const backward =
      command.add_flag("--backward", options.backward,
                       "the gradients; --dtype is that of dy and of the forward's x");
  dtype("--x-dtype", options.x_dtype, "of what the forward normalised; default: --dtype");
  flag("--dresidual-in", options.dresidual_in, "a gradient reaches residual_out");
  dtype("--dresidual-in-dtype", options.dresidual_in_dtype, "default: --dtype");
  dtype("--dresidual-dtype", options.dresidual_dtype, "dresidual is stored; default: it is not");
  dtype("--dweight-dtype", options.dweight_dtype, "f32 or the weight's; default: the weight's");
  flag("--no-dx", options.no_dx, "dx is not wanted");
  flag("--no-dweight", options.no_dweight, "dweight and dbranch_weight are not wanted");
  flag("--branch", options.branch, "the forward added its x to a residual; dbranch is wanted");
  flag("--no-dgate", options.no_dgate, "dgate and dresidual_gate are not wanted");
  flag("--recompute", options.recompute, "mean and rstd are not given");
  flag("--accumulate", options.accumulate, "sums over rows are added to what is there");
  std::vector<std::string> of_both = {
      "--shape",      "--dtype",      "--device", "--parameter-dtype",
      "--bias-dtype", "--no-weight",  "--bias",   "--head-weights",
      "--in-place",   "--row-stride", "--offset", "--tuning",
      "--threads",    "--json"};
  // Statistics of the branch are given unless they are computed again.
  for (const std::string& name : StageOptions::of_backward()) {
    if (name != "--branch-rstd") of_both.push_back(name);
  }
  separate_backward(command, backward, of_both);
}

}  // namespace

void tell_plan(const fastnorm_info& info, const std::string& device, bool json) {
  const bool cuda = parse_target(device).is_cuda(), built = has_kernels(device);
  if (json) {
    Json document = to_json(info, cuda);
    document["kernel_built"] = built;
    print_json(document);
    return;
  }
  clear_progress();
  print_text(info, cuda);
  if (!built) std::printf("not here           this build has no kernels for %s\n", device.c_str());
}

void add_explain(CLI::App& program) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* command = program.add_subcommand(
      "explain", "What a call would do: kernel, tile, workspace, bytes. Nothing runs");
  const CLI::IsMember row_dtypes(row_dtype_names());
  add_sizes(*command, "--shape", options->shape, "of x, such as 4096x8192", {})->required();
  command->add_option("--dtype", options->dtype, "dtype of x")
      ->check(row_dtypes)
      ->capture_default_str();
  command->add_option("--y-dtype", options->y_dtype, "default: x's")->check(row_dtypes);
  add_device_option(*command, &options->device, true);
  command->add_flag("--residual", options->residual, "a residual is added");
  command->add_flag("--residual-out", options->residual_out, "the sum is stored");
  command->add_option("--residual-dtype", options->residual_dtype, "default: x's")
      ->check(row_dtypes);
  command
      ->add_option("--residual-out-dtype", options->residual_out_dtype, "default: the residual's")
      ->check(row_dtypes);
  command
      ->add_option("--parameter-dtype", options->parameter_dtype,
                   "dtype of weight and bias, and of dbias; default: x's")
      ->check(row_dtypes);
  command->add_option("--bias-dtype", options->bias_dtype, "default: --parameter-dtype")
      ->check(row_dtypes);
  command->add_flag("--no-weight", options->no_weight, "there is no weight");
  command->add_flag("--bias", options->bias, "there is a bias; --backward: dbias is wanted");
  command->add_flag("--head-weights", options->head_weights, "a row of weights for each head");
  command->add_flag("--rstd", options->statistics, "rstd is stored");
  command->add_flag("--clamp-scale", options->clamp_scale, "the clamp is a value on the device");
  command->add_flag("--rotation-signs", options->rotation_signs,
                    "with --rotation: each column has a sign");
  command->add_flag("--in-place", options->in_place,
                    "y over x, residual_out over residual; --backward: dx over dy, dgate over the "
                    "gate, dbranch over the branch");
  add_number(*command, "--row-stride", options->row_stride_elems,
             "elements from one row to the next; default: compact", 0, INT64_MAX);
  add_number(*command, "--offset", options->offset_elems,
             "elements between a 4096-byte boundary and the first row", 0, 4096);
  add_tuning_option(*command, &options->tuning);
  add_threads_option(*command, &options->threads);
  command->add_flag("--json", options->json, "print JSON");
  options->norm.add_to(*command);
  options->stages.add_without_names_to(*command);
  add_backward_options(*command, *options);
  set_examples(*command, {"fastnorm explain --shape 4096x8192 --device sm_90",
                          "fastnorm explain --shape 4096x8192 --residual --residual-out --in-place",
                          "fastnorm explain --backward --shape 16384x4096 --device sm_90 --json"});
  command->callback([options] {
    check_combination(*options);
    run_explain(*options);
  });
}

}  // namespace fastnorm::tool
