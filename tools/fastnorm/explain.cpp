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
void add_stages(const ExplainOptions& o, Pretended* pretended) {
  const fastnorm_dtype dtype = find_dtype(o.dtype)->dtype,
                       f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32),
                       parameters = dtype_or(o.parameter_dtype, dtype);
  const std::vector<int64_t> rows = pretended->row_shape(), groups = pretended->group_shape(),
                             columns = {o.shape.back()};
  std::vector<int64_t> sums = groups;
  if (o.norm.is_layer()) sums.push_back(2);
  const auto make = [&](const char* option, const char* path, fastnorm_dtype of,
                        const std::vector<int64_t>& shape) {
    if (o.tensors.has(option)) pretended->tensor(path, of, shape);
  };
  if (o.tensors.has("--gate")) pretended->rows("gate", dtype);
  make("--mean-in", "mean_in", f32, groups);
  make("--rstd-in", "rstd_in", f32, groups);
  make("--sumsq", "sumsq", f32, sums);
  make("--branch-weight", "branch_weight", parameters, columns);
  make("--branch-bias", "branch_bias", parameters, columns);
  make("--branch-rstd", "branch_rstd", f32, rows);
  make("--sum-scale", "sum_scale", f32, {1});
  make("--modulation-index", "modulation_index", fastnorm_dtype_of(FASTNORM_DTYPE_I32), rows);
  for (const char* option : {"--residual-gate", "--modulation-scale", "--modulation-shift"}) {
    const std::string& shape = o.tensors.at(option);
    if (!shape.empty())
      pretended->tensor(path_of(pretended->call(0).family(), option).c_str(), parameters,
                        parse_sizes(option, shape, {}));
  }
  make("--residual-gate-table", "residual_gate_table", parameters, columns);
  make("--scale-table", "scale_table", parameters, columns);
  make("--shift-table", "shift_table", parameters, columns);
}

fastnorm_info query_forward(fastnorm_context* context, const ExplainOptions& o) {
  Pretended pretended(o, "norm");
  const fastnorm_dtype dtype = find_dtype(o.dtype)->dtype,
                       f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32),
                       parameters = dtype_or(o.parameter_dtype, dtype),
                       residual = dtype_or(o.residual_dtype, dtype);
  pretended.rows("x", dtype);
  pretended.rows_over("y", "x", dtype_or(o.y_dtype, dtype));
  if (o.residual) pretended.rows("residual", residual);
  if (o.residual_out)
    pretended.rows_over("residual_out", "residual", dtype_or(o.residual_out_dtype, residual));
  if (!o.no_weight) pretended.parameters("weight", parameters);
  if (o.bias) pretended.parameters("bias", dtype_or(o.bias_dtype, parameters));
  if (o.statistics) pretended.tensor("rstd", f32, pretended.row_shape());
  if (o.norm.quantises()) {
    const QuantTensors quant = o.norm.quant_tensors(o.shape);
    pretended.tensor("quant.quantized", quant.codes, quant.codes_shape);
    pretended.tensor("quant.scale", quant.scale, quant.scale_shape);
  }
  if (o.clamp_scale) pretended.tensor("quant.clamp_scale", f32, {1});
  if (o.rotation_signs) pretended.tensor("quant.rotation_signs", f32, {o.shape.back()});
  add_stages(o, &pretended);
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_query(context, pretended.call(0).args<fastnorm_norm_args>(), &info));
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
  const fastnorm_info info = options.backward ? query_backward(context.get(), options)
                                              : query_forward(context.get(), options);
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
  for (const std::string& name : StageOptions::of_backward(command)) {
    if (name != "--branch-rstd") of_both.push_back(name);
  }
  separate_backward(command, backward, of_both);
}

}  // namespace

Pretended::Pretended(const ExplainOptions& options, const char* family)
    : options_(options), call_(family) {
  const Target target = parse_target(options.device);
  call_.change("device=" + std::to_string(target.device_type) + ":" +
               std::to_string(target.device_id));
}

support::Call& Pretended::call(uint32_t flags) {
  const NormOptions& norm = options_.norm;
  const support::CallFamily& family = call_.family();
  flags |= norm.fields().flags() | options_.stages.flags(family);
  call_.change(norm.fields().words(family) + options_.stages.words(family) +
               " flags=" + std::to_string(flags));
  return call_;
}

void Pretended::rows(const char* path, fastnorm_dtype dtype) {
  const auto offset = static_cast<uint64_t>(options_.offset_elems) * element_bytes(dtype);
  rows_at(path, next_address() + offset, dtype);
}

void Pretended::rows_over(const char* path, const char* other, fastnorm_dtype dtype) {
  if (!options_.in_place) return rows(path, dtype);
  const support::CallTensor* const over = call_.tensor(other);
  rows_at(path, over != nullptr ? over->address->number : 0, dtype);
}

void Pretended::tensor(const char* path, fastnorm_dtype dtype, std::vector<int64_t> shape) {
  call_.give(path, call_tensor(next_address(), dtype, std::move(shape)));
}

void Pretended::parameters(const char* path, fastnorm_dtype dtype) {
  std::vector<int64_t> shape = {options_.shape.back()};
  if (options_.head_weights) shape.insert(shape.begin(), row_shape().back());
  tensor(path, dtype, shape);
}

std::vector<int64_t> Pretended::row_shape() const {
  if (options_.shape.size() < 2) return {1};
  return {options_.shape.begin(), options_.shape.end() - 1};
}

std::vector<int64_t> Pretended::group_shape() const {
  const int64_t size = options_.stages.group_size(), n = options_.shape.back();
  if (size <= 0 || size >= n || n % size != 0) return row_shape();
  std::vector<int64_t> shape(options_.shape.begin(), options_.shape.end() - 1);
  shape.push_back(n / size);
  return shape;
}

void Pretended::rows_at(const char* path, uint64_t address, fastnorm_dtype dtype) {
  std::vector<int64_t> strides;
  if (options_.row_stride_elems != 0 && options_.shape.size() > 1) {
    strides.assign(options_.shape.size(), 1);
    strides[strides.size() - 2] = options_.row_stride_elems;
    for (size_t d = strides.size() - 2; d-- > 0;) {
      // May wrap, for shapes that the library refuses.
      strides[d] = static_cast<int64_t>(static_cast<uint64_t>(strides[d + 1]) *
                                        static_cast<uint64_t>(options_.shape[d + 1]));
    }
  }
  call_.give(path, call_tensor(address, dtype, options_.shape, strides));
}

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
  options->stages.add_without_names_to(*command, &options->tensors);
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
