// fastnorm norm_heads_backward: the gradients of a random layer's query, key and value heads. They
// are compared with the formula. Also what a call would do, and its time.
#include <cstdio>
#include <memory>

#include "bench_case.h"
#include "commands.h"
#include "explain.h"
#include "help.h"
#include "json.h"
#include "norm_heads_backward_case.h"
#include "norm_options.h"
#include "progress.h"
#include "shape.h"
#include "stopwatch.h"

namespace fastnorm::tool {
namespace {

struct HeadsGradientCommand {
  HeadsGradientOptions call;
  std::string device = "cpu", tuning, output;
  int64_t check_tokens = 16;
  int32_t threads = 1, repeats = 9;
  bool json = false;
};

Json describe_gradients(const HeadsGradientOptions& o) {
  const NormHeadsOptions& layer = o.layer;
  return {{"tokens", layer.tokens},       {"query_heads", layer.query_heads},
          {"key_heads", layer.key_heads}, {"head_dim", layer.columns},
          {"dtype", layer.dtype},         {"rope_dim", layer.rope_dim},
          {"in_place", layer.in_place},   {"seed", layer.seed}};
}

void run_gradients(const HeadsGradientCommand& options) {
  const Machine machine(parse_target(options.device), options.threads, options.tuning);
  const fastnorm_device_info device = describe_device(machine.target());
  HeadsGradientInputs inputs(options.call);
  inputs.fill(options.call);
  CallMemory memory(machine);
  const HeadsGradientCall::Place place = [&](size_t bytes, const std::byte* content) {
    return memory.place(bytes, content);
  };
  const HeadsGradientCall call(options.call, inputs, machine.target(), place);
  const fastnorm_info info = call.query(machine.context());
  const Block workspace =
      info.workspace_bytes != 0 ? machine.allocate(info.workspace_bytes) : Block();
  std::vector<std::vector<std::byte>> results[2];
  for (auto& result : results) {
    call.reset(machine);
    call.run(machine, workspace.get(), info.workspace_bytes);
    machine.synchronize();
    for (const HeadsGradient& o : call.outputs()) result.push_back(call.read(machine, o));
  }
  const bool same_bits = results[0] == results[1];
  const HeadsGradientErrors errors = compare_heads_gradients(options.call, inputs, call.outputs(),
                                                             results[0], options.check_tokens);
  Json document = {{"library", fastnorm_version_string()},
                   {"device", device.name},
                   {"kernels", device.kernel_arch},
                   {"threads", options.threads}};
  document["call"] = describe_gradients(options.call);
  document["kernel"] = info.kernel;
  document["launches"] = info.launches;
  document["workspace_bytes"] = info.workspace_bytes;
  document["bytes_read"] = info.bytes_read;
  document["bytes_written"] = info.bytes_written;
  document["checked_rows"] = errors.rows;
  document["checked_sums"] = errors.sums;
  document["wrong"] = errors.wrong;
  document["max_error"] = errors.max_error;
  document["error_share"] = errors.worst;
  document["same_bits_twice"] = same_bits;
  if (options.json) {
    print_json(document);
  } else {
    clear_progress();
    std::printf("%s, kernels %s, kernel \"%s\", %d launch(es), workspace %llu bytes\n", device.name,
                device.kernel_arch, info.kernel, info.launches,
                static_cast<unsigned long long>(info.workspace_bytes));
    std::printf("largest error %.3g, %.2f of what is allowed\n", errors.max_error, errors.worst);
    std::printf(
        "%lld row(s) of dx and %lld column(s) of dweight compared with the formula in double "
        "precision, %lld wrong; run twice: %s bits\n",
        static_cast<long long>(errors.rows), static_cast<long long>(errors.sums),
        static_cast<long long>(errors.wrong), same_bits ? "the same" : "other");
  }
  if (errors.wrong != 0)
    throw CommandError(std::to_string(errors.wrong) + " rows or columns are wrong");
  if (!same_bits) throw CommandError("two equal calls gave different bits");
}

fastnorm_info plan_gradients(const HeadsGradientCommand& options, fastnorm_context* context) {
  const HeadsGradientInputs inputs(options.call);
  Regions regions;
  const HeadsGradientCall::Place place = [&](size_t, const std::byte*) { return regions.next(); };
  const HeadsGradientCall call(options.call, inputs, parse_target(options.device), place);
  return call.query(context);
}

void explain_gradients(const HeadsGradientCommand& options) {
  const ContextPtr context =
      make_context(parse_target(options.device), options.threads, options.tuning);
  tell_plan(plan_gradients(options, context.get()), options.device, options.json);
}

// A call with memory of its own, and memory for a copy of as many bytes.
struct GradientBenchSet {
  GradientBenchSet(const Machine& machine, const HeadsGradientOptions& options,
                   const HeadsGradientInputs& inputs)
      : memory(machine),
        place([this](size_t bytes, const std::byte* content) {
          return memory.place(bytes, content);
        }),
        call(options, inputs, machine.target(), place) {}

  CallMemory memory;
  HeadsGradientCall::Place place;
  HeadsGradientCall call;
  Block copy;
};

// As time_heads() of the forward: large calls, and all on a GPU, rotate over several sets.
Timing time_gradients(const Machine& machine, const HeadsGradientCommand& options,
                      const fastnorm_info& info) {
  constexpr size_t kColdBytes = size_t{512} << 20, kCacheBytes = size_t{1} << 20, kMaxSets = 64;
  const size_t bytes = info.bytes_read + info.bytes_written;
  HeadsGradientInputs inputs(options.call);
  inputs.fill(options.call);
  const size_t half = (bytes / 2 + 255) / 256 * 256;
  const bool cold = machine.target().is_cuda() || bytes > kCacheBytes;
  const size_t count = cold ? std::clamp<size_t>(kColdBytes / bytes, 2, kMaxSets) : 1;
  const Block workspace =
      info.workspace_bytes != 0 ? machine.allocate(info.workspace_bytes) : Block();
  std::vector<std::unique_ptr<GradientBenchSet>> sets;
  TimedCalls timed = {{}, {}, bytes / 2, cold};
  for (size_t i = 0; i < count; ++i) {
    sets.push_back(std::make_unique<GradientBenchSet>(machine, options.call, inputs));
    sets[i]->copy = machine.allocate(2 * half);
    timed.sets.push_back({sets[i]->copy.get(), sets[i]->copy.get() + half});
    sets[i]->call.run(machine, workspace.get(), info.workspace_bytes);  // kernels are loaded
    machine.synchronize();
  }
  timed.run = [&](size_t i) { sets[i]->call.run(machine, workspace.get(), info.workspace_bytes); };
  return time_calls(machine, timed, options.repeats, options.threads);
}

void bench_gradients(const HeadsGradientCommand& options) {
  if (!options.output.empty()) require_writable(options.output);
  const Machine machine(parse_target(options.device), options.threads, options.tuning);
  const fastnorm_device_info device = describe_device(machine.target());
  const fastnorm_info info = plan_gradients(options, machine.context());
  const uint64_t bytes = info.bytes_read + info.bytes_written;
  const Timing timing = time_gradients(machine, options, info);
  const double gb = static_cast<double>(bytes) / timing.us / 1e3;
  const double ratio = timing.us / timing.copy_us;
  Json document = {{"date", now_text()},         {"library", fastnorm_version_string()},
                   {"device", device.name},      {"kernels", device.kernel_arch},
                   {"threads", options.threads}, {"repeats", options.repeats}};
  document["call"] = describe_gradients(options.call);
  document["kernel"] = info.kernel;
  document["bytes_moved"] = bytes;
  document["median_us"] = timing.us;
  document["spread"] = timing.spread;
  document["gb_per_s"] = gb;
  document["copy_us"] = timing.copy_us;
  document["ratio_to_copy"] = ratio;
  if (!options.output.empty()) write_json(options.output, document);
  if (options.json) {
    print_json(document);
    return;
  }
  clear_progress();
  std::printf("%s, kernels %s, kernel \"%s\"", device.name, device.kernel_arch, info.kernel);
  if (!machine.target().is_cuda()) std::printf(", %d thread(s)", options.threads);
  std::printf("\nmedian %.2f us (spread %.0f%%), %.2f GB/s\n", timing.us, 100 * timing.spread, gb);
  std::printf("copy of as many bytes in the same run: %.2f us; the call takes %.3f of that\n",
              timing.copy_us, ratio);
}

void check_gradients(HeadsGradientOptions& o) {
  const bool has_dweight = !o.layer.no_norm && !o.layer.no_weight && !o.no_dweight;
  if (o.no_dx && !has_dweight)
    throw CLI::ValidationError("--no-dx leaves no output; required: a weight, and its gradient");
  if (o.no_dx && o.layer.in_place)
    throw CLI::ValidationError("--in-place needs dx; remove --no-dx");
  o.layer.cache = "none";
  if (o.layer.rope_dim < 0) o.layer.rope_dim = static_cast<int32_t>(o.layer.columns);
}

void add_gradient_options(CLI::App& command, HeadsGradientCommand& options) {
  HeadsGradientOptions& o = options.call;
  NormHeadsOptions& layer = o.layer;
  const auto number = [&](const char* name, int64_t& value, const char* text, int64_t least) {
    add_number(command, name, value, text, least, kMostExtent)->group("Layer");
  };
  const auto dtype = [&](const char* name, std::string& value, const char* text) {
    command.add_option(name, value, text)
        ->check(CLI::IsMember(row_dtype_names()))
        ->capture_default_str()
        ->group("Layer");
  };
  number("--tokens", layer.tokens, "tokens", 0);
  number("--query-heads", layer.query_heads, "query heads", 1);
  number("--key-heads", layer.key_heads, "key heads, and as many value heads", 1);
  number("--head-dim", layer.columns, "columns of a head", 1);
  dtype("--dtype", layer.dtype, "of the heads");
  dtype("--dy-dtype", o.dy_dtype, "of the gradients that come in; default: the heads'");
  dtype("--parameter-dtype", layer.parameter_dtype, "of the weights; default: the heads'");
  dtype("--dweight-dtype", o.dweight_dtype, "f32 or the weights'");
  command.add_flag("--separate", layer.separate, "three gradients, in place of one of all heads")
      ->group("Layer");
  command.add_flag("--in-place", layer.in_place, "dx over dy")->group("Layer");
  command.add_flag("--no-dx", o.no_dx, "gradients of the weights alone")->group("Layer");
  number("--table-rows", layer.table_rows, "rows of the tables, which are positions", 1);
  dtype("--table-dtype", layer.table_dtype, "of the tables");
  command.add_flag("--no-norm", layer.no_norm, "query and key were not normalised")->group("Norm");
  command.add_flag("--no-weight", layer.no_weight, "the norm has no weights")->group("Norm");
  command.add_flag("--no-dweight", o.no_dweight, "the weights are frozen")->group("Norm");
  command.add_flag("--head-weights", layer.head_weights, "a row of weights for each head")
      ->group("Norm");
  command.add_flag("--across-heads", layer.across_heads, "one statistic for all heads of a token")
      ->group("Norm");
  command.add_flag("--recompute", o.recompute, "compute the statistics again")->group("Norm");
  add_number(command, "--rope-dim", layer.rope_dim, "columns that turned; 0 = none; default: all",
             0, kMostExtent)
      ->group("Rope");
  add_number(command, "--rope-offset", layer.rope_offset,
             "first column that turned; -1 = the last columns", -1, kMostExtent)
      ->group("Rope");
  command.add_flag("--interleaved", layer.interleaved, "pairs are neighbours (GPT-J)")
      ->group("Rope");
  command.add_flag("--inverse", layer.inverse, "the forward turned back")->group("Rope");
  layer.norm.add_statistic_to(command);
  add_tuning_option(command, &options.tuning);
  add_threads_option(command, &options.threads);
  command.add_flag("--json", options.json, "print JSON");
}

void add_gradient_device(CLI::App& command, HeadsGradientCommand& options, bool dry) {
  add_device_option(command, &options.device, dry);
  if (dry) return;
  add_number(command, "--seed", options.call.layer.seed, "of the random data", 0, INT32_MAX);
}

}  // namespace

void add_norm_heads_backward(CLI::App& program) {
  CLI::App* family = program.add_subcommand("norm_heads_backward",
                                            "The gradients of norm_heads, of a random layer");
  family->require_subcommand(1);
  set_examples(*family, {"fastnorm norm_heads_backward run --tokens 64",
                         "fastnorm norm_heads_backward explain --tokens 4096 --device sm_90"});

  auto run = std::make_shared<HeadsGradientCommand>();
  CLI::App* command = family->add_subcommand("run", "Random data, compared with the formula");
  command->footer(
      "The call runs twice. Bits must be equal. dx and dweight may be off by their own rounding,\n"
      "and by 2^-17 of what they are the sum of; dweight by a little more for many rows, and both\n"
      "by unit roundoffs where the options round between steps.");
  add_gradient_options(*command, *run);
  add_gradient_device(*command, *run, false);
  add_number(*command, "--check-tokens", run->check_tokens, "tokens compared, spread over all",
             int64_t{1}, int64_t{1} << 31);
  set_examples(*command, {"fastnorm norm_heads_backward run --tokens 64",
                          "fastnorm norm_heads_backward run --tokens 16 --in-place --json"});
  command->callback([run] {
    check_gradients(run->call);
    run_gradients(*run);
  });

  auto explain = std::make_shared<HeadsGradientCommand>();
  command = family->add_subcommand("explain",
                                   "What a call would do: kernel, workspace, bytes. Nothing runs");
  add_gradient_options(*command, *explain);
  add_gradient_device(*command, *explain, true);
  set_examples(*command, {"fastnorm norm_heads_backward explain --tokens 4096 --device sm_90",
                          "fastnorm norm_heads_backward explain --tokens 4096 --no-dx --json"});
  command->callback([explain] {
    check_gradients(explain->call);
    explain_gradients(*explain);
  });

  auto bench = std::make_shared<HeadsGradientCommand>();
  command =
      family->add_subcommand("bench", "Time a random layer's call beside a copy of its bytes");
  add_gradient_options(*command, *bench);
  add_gradient_device(*command, *bench, false);
  add_number(*command, "--repeats", bench->repeats, "samples; the median counts", 1, 10000);
  add_output_option(*command, &bench->output);
  set_examples(*command, {"fastnorm norm_heads_backward bench --tokens 64",
                          "fastnorm norm_heads_backward bench --tokens 4096 --device cuda:0"});
  command->callback([bench] {
    check_gradients(bench->call);
    if (bench->call.layer.tokens == 0) {
      throw CLI::ValidationError(
          "--tokens is 0; required: at least 1, as there is nothing to time");
    }
    bench_gradients(*bench);
  });
}

}  // namespace fastnorm::tool
