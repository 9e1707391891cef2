// fastnorm norm_heads: a layer's query, key and value heads, random or from a file; what a call
// would do; and its time.
#include <cstdio>
#include <memory>

#include "bench_case.h"
#include "commands.h"
#include "explain.h"
#include "help.h"
#include "json.h"
#include "norm_heads_case.h"
#include "progress.h"
#include "run.h"
#include "safetensors.h"
#include "shape.h"
#include "stopwatch.h"

namespace fastnorm::tool {
namespace {

// HeadsNames of tensors in the input file. Empty = absent.
struct HeadsNames {
  std::string x[kHeadsParts], weight[2], mean_in[2], rstd_in[2];
  std::string cos, sin, positions, slots, clamp_scale, rotation_signs;
};

struct HeadsCommandOptions {
  NormHeadsOptions layer;
  std::vector<int64_t> mrope;
  std::string device = "cpu", tuning, input, output;
  HeadsNames names;
  int64_t check_tokens = 16;
  int32_t threads = 1, repeats = 9;
  bool json = false;
};

fastnorm_info run_call(const Machine& machine, const NormHeadsCall& call) {
  const fastnorm_info info = call.query(machine.context());
  const Block workspace =
      info.workspace_bytes != 0 ? machine.allocate(info.workspace_bytes) : Block();
  check(fastnorm_norm_heads(machine.context(), &call.args(), call.parts(), call.count(),
                            workspace.get(), info.workspace_bytes, machine.stream()));
  machine.synchronize();
  return info;
}

std::vector<std::vector<std::byte>> read_all(const Machine& machine, const NormHeadsCall& call) {
  std::vector<std::vector<std::byte>> results;
  for (const HeadsOutput& o : call.outputs()) results.push_back(call.read(machine, o));
  return results;
}

// --- run on random data ---

Json describe_heads(const NormHeadsOptions& o) {
  return {{"tokens", o.tokens},
          {"query_heads", o.query_heads},
          {"key_heads", o.key_heads},
          {"head_dim", o.columns},
          {"dtype", o.dtype},
          {"rope_dim", o.rope_dim},
          {"cache", o.cache},
          {"page", o.page},
          {"seed", o.seed}};
}

void tell_heads(const HeadsCommandOptions& options, const Json& document,
                const NormHeadsErrors& errors, bool same_bits) {
  const NormHeadsOptions& o = options.layer;
  const auto number = [](int64_t value) { return static_cast<long long>(value); };
  clear_progress();
  std::printf("%s, kernels %s, kernel \"%s\", %d launch(es), workspace %llu bytes\n",
              document["device"].get<std::string>().c_str(),
              document["kernels"].get<std::string>().c_str(),
              document["kernel"].get<std::string>().c_str(), document["launches"].get<int>(),
              document["workspace_bytes"].get<unsigned long long>());
  std::printf("%lld token(s), %lld query and %lld key heads of %lld, %s\n", number(o.tokens),
              number(o.query_heads), number(o.key_heads), number(o.columns), o.dtype.c_str());
  std::printf("largest error %.3g, %.2f of what is allowed\n", errors.max_error, errors.worst);
  std::printf(
      "%lld row(s) compared with the formula in double precision, %lld of them cached, %lld "
      "wrong; %lld slot(s) without a token and %lld of %lld token(s) without a slot written; run "
      "twice: %s bits\n",
      number(errors.rows), number(errors.cached_rows), number(errors.wrong_rows),
      number(errors.touched_slots), number(errors.touched_padding), number(errors.padding),
      same_bits ? "the same" : "other");
  if (errors.statistics != 0) {
    std::printf("%lld statistic(s) compared, too\n", number(errors.statistics));
  }
}

void run_random_heads(const HeadsCommandOptions& options) {
  const Machine machine(parse_target(options.device), options.threads, options.tuning);
  const fastnorm_device_info device = describe_device(machine.target());
  NormHeadsInputs inputs(options.layer);
  inputs.fill(static_cast<uint64_t>(options.layer.seed));
  CallMemory memory(machine);
  const NormHeadsCall::Place place = [&](size_t bytes, const std::byte* content) {
    return memory.place(bytes, content);
  };
  const NormHeadsCall call(options.layer, inputs, machine.target(), place);
  const fastnorm_info info = call.query(machine.context());
  call.reset(machine);
  run_call(machine, call);
  const std::vector<std::vector<std::byte>> results = read_all(machine, call);
  call.reset(machine);
  run_call(machine, call);
  const bool same_bits = read_all(machine, call) == results;
  const NormHeadsErrors errors =
      compare_norm_heads(options.layer, inputs, call.outputs(), results, options.check_tokens);

  Json document = {{"library", fastnorm_version_string()},
                   {"device", device.name},
                   {"kernels", device.kernel_arch},
                   {"threads", options.threads}};
  document["call"] = describe_heads(options.layer);
  document["kernel"] = info.kernel;
  document["launches"] = info.launches;
  document["workspace_bytes"] = info.workspace_bytes;
  document["bytes_read"] = info.bytes_read;
  document["bytes_written"] = info.bytes_written;
  document["checked_rows"] = errors.rows;
  document["cached_rows"] = errors.cached_rows;
  document["checked_statistics"] = errors.statistics;
  document["wrong_rows"] = errors.wrong_rows;
  document["touched_slots"] = errors.touched_slots;
  document["padding"] = errors.padding;
  document["touched_padding"] = errors.touched_padding;
  document["max_error"] = errors.max_error;
  document["error_share"] = errors.worst;
  document["same_bits_twice"] = same_bits;
  options.json ? print_json(document) : tell_heads(options, document, errors, same_bits);
  if (errors.wrong_rows != 0) {
    throw CommandError(std::to_string(errors.wrong_rows) + " rows are wrong");
  }
  if (errors.touched_slots != 0) throw CommandError("slots that no token has were written");
  if (errors.touched_padding != 0) throw CommandError("outputs of padding were written");
  if (!same_bits) throw CommandError("two equal calls gave different bits");
}

// --- run on a file ---

HostTensor load(const SafetensorsFile& file, const std::string& name) {
  if (name.empty()) return {};
  const StoredTensor& stored = file.at(name);
  const DtypeName* dtype = find_safetensors_dtype(stored.dtype);
  if (dtype == nullptr) {
    throw CommandError(file.path() + ": tensor '" + name + "' has dtype " + stored.dtype +
                       "; required: " + safetensors_dtype_names());
  }
  return {dtype->dtype, stored.shape, {stored.content.begin(), stored.content.end()}};
}

// Pages up to that of the largest slot.
int64_t pages_for(const HostTensor& slots, int64_t page) {
  int64_t most = 0;
  const size_t element = element_bytes(slots.dtype);
  for (size_t at = 0; at + element <= slots.content.size(); at += element) {
    int64_t slot = 0;
    if (element == 8) {
      std::copy_n(&slots.content[at], 8, reinterpret_cast<std::byte*>(&slot));
    } else if (element == 4) {
      int32_t narrow = 0;
      std::copy_n(&slots.content[at], 4, reinterpret_cast<std::byte*>(&narrow));
      slot = narrow;
    }
    most = std::max(most, slot);
  }
  return most / page + 1;
}

void require_rank(const std::string& option, const HostTensor& t, size_t rank) {
  if (t.shape.size() != rank) {
    throw CommandError(option + " has " + std::to_string(t.shape.size()) +
                       " dimensions; required: " + std::to_string(rank));
  }
}

void run_file_heads(const HeadsCommandOptions& options) {
  const SafetensorsFile file(options.input);
  const Machine machine(parse_target(options.device), options.threads, options.tuning);
  NormHeadsOptions layer = options.layer;
  layer.separate = true;
  NormHeadsInputs inputs;
  constexpr const char* kOptions[] = {"--query", "--key", "--value"};
  for (int p = 0; p < kHeadsParts; ++p) {
    inputs.x[p] = load(file, options.names.x[p]);
    if (!options.names.x[p].empty()) require_rank(kOptions[p], inputs.x[p], 3);
  }
  for (int p = 0; p < 2; ++p) {
    inputs.weight[p] = load(file, options.names.weight[p]);
    inputs.mean_in[p] = load(file, options.names.mean_in[p]);
    inputs.rstd_in[p] = load(file, options.names.rstd_in[p]);
  }
  inputs.cos = load(file, options.names.cos);
  inputs.sin = load(file, options.names.sin);
  inputs.positions = load(file, options.names.positions);
  inputs.slots = load(file, options.names.slots);
  inputs.clamp_scale = load(file, options.names.clamp_scale);
  inputs.rotation_signs = load(file, options.names.rotation_signs);
  if (inputs.cos.present() && layer.rope_dim < 0) {
    layer.rope_dim = static_cast<int32_t>(2 * inputs.cos.shape.back());
  }
  if (inputs.slots.present()) inputs.pages = pages_for(inputs.slots, layer.page);
  CallMemory memory(machine);
  const NormHeadsCall::Place place = [&](size_t bytes, const std::byte* content) {
    return memory.place(bytes, content);
  };
  const NormHeadsCall call(layer, inputs, machine.target(), place);
  const fastnorm_info info = run_call(machine, call);
  std::vector<NewTensor> stored;
  for (const HeadsOutput& o : call.outputs()) {
    stored.push_back({o.name, o.dtype, o.shape, call.read(machine, o)});
  }
  write_safetensors(options.output, stored);
  if (!options.json) return;
  Json document = to_json(machine, info);
  document["file"] = options.output;
  for (const NewTensor& t : stored) document["tensors"].push_back(to_json(t));
  print_json(document);
}

// --- explain ---

void run_explain_heads(const HeadsCommandOptions& options) {
  const Target target = parse_target(options.device);
  const ContextPtr context = make_context(target, options.threads, options.tuning);
  const NormHeadsInputs inputs(options.layer);
  Regions regions;
  const NormHeadsCall::Place place = [&](size_t, const std::byte*) { return regions.next(); };
  const NormHeadsCall call(options.layer, inputs, target, place);
  tell_plan(call.query(context.get()), options.device, options.json);
}

// --- bench ---

// A call with memory of its own, and memory for a copy of as many bytes.
struct BenchSet {
  BenchSet(const Machine& machine, const NormHeadsOptions& layer, const NormHeadsInputs& inputs)
      : memory(machine),
        place([this](size_t bytes, const std::byte* content) {
          return memory.place(bytes, content);
        }),
        call(layer, inputs, machine.target(), place) {}

  CallMemory memory;
  NormHeadsCall::Place place;
  NormHeadsCall call;
  Block copy;
};

// The time of a call and of a copy. Calls larger than the caches, and all on a GPU, rotate over
// several sets, so that nothing is found in a cache.
Timing time_heads(const Machine& machine, const HeadsCommandOptions& options, size_t bytes) {
  constexpr size_t kColdBytes = size_t{512} << 20, kCacheBytes = size_t{1} << 20, kMaxSets = 64;
  NormHeadsInputs inputs(options.layer);
  inputs.fill(static_cast<uint64_t>(options.layer.seed));
  const size_t half = (bytes / 2 + 255) / 256 * 256;
  const bool cold = machine.target().is_cuda() || bytes > kCacheBytes;
  const size_t count = cold ? std::clamp<size_t>(kColdBytes / bytes, 2, kMaxSets) : 1;
  std::vector<std::unique_ptr<BenchSet>> sets;
  TimedCalls timed = {{}, {}, bytes / 2, cold};
  for (size_t i = 0; i < count; ++i) {
    sets.push_back(std::make_unique<BenchSet>(machine, options.layer, inputs));
    sets[i]->copy = machine.allocate(2 * half);
    timed.sets.push_back({sets[i]->copy.get(), sets[i]->copy.get() + half});
    run_call(machine, sets[i]->call);  // kernels are loaded, and pages are there
  }
  const fastnorm_info info = sets[0]->call.query(machine.context());
  const Block workspace =
      info.workspace_bytes != 0 ? machine.allocate(info.workspace_bytes) : Block();
  timed.run = [&](size_t i) {
    const NormHeadsCall& call = sets[i]->call;
    check(fastnorm_norm_heads(machine.context(), &call.args(), call.parts(), call.count(),
                              workspace.get(), info.workspace_bytes, machine.stream()));
  };
  return time_calls(machine, timed, options.repeats, options.threads);
}

void run_bench_heads(const HeadsCommandOptions& options) {
  if (!options.output.empty()) require_writable(options.output);
  const Machine machine(parse_target(options.device), options.threads, options.tuning);
  const fastnorm_device_info device = describe_device(machine.target());
  const NormHeadsInputs shapes(options.layer);
  Regions regions;
  const NormHeadsCall::Place nowhere = [&](size_t, const std::byte*) { return regions.next(); };
  const NormHeadsCall planned(options.layer, shapes, machine.target(), nowhere);
  const fastnorm_info info = planned.query(machine.context());
  const uint64_t bytes = info.bytes_read + info.bytes_written;
  const Timing timing = time_heads(machine, options, bytes);
  const double gb = static_cast<double>(bytes) / timing.us / 1e3;
  const double ratio = timing.us / timing.copy_us;

  Json document = {{"date", now_text()},         {"library", fastnorm_version_string()},
                   {"device", device.name},      {"kernels", device.kernel_arch},
                   {"threads", options.threads}, {"repeats", options.repeats}};
  document["call"] = describe_heads(options.layer);
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

// --- options ---

void check_heads_names(const HeadsNames& names) {
  const std::string* x = names.x;
  if (x[kQuery].empty() && x[kKey].empty() && x[kValue].empty()) {
    throw CLI::ValidationError("IN is given; required: --query, --key or --value");
  }
  if (names.cos.empty() != names.sin.empty()) {
    throw CLI::ValidationError("--cos and --sin go together");
  }
  if (!x[kValue].empty() && names.slots.empty()) {
    throw CLI::ValidationError("--value needs --slots: a value is only written to a cache");
  }
}

void check_layer(HeadsCommandOptions& options) {
  NormHeadsOptions& o = options.layer;
  if (o.cache_scheme == "per-block" && !o.has_codes()) {
    throw CLI::ValidationError("--cache-scheme per-block needs --cache f8_e4m3, f8_e5m2 or i8");
  }
  if (o.cache_scheme == "per-block" && o.cache_block == 0) o.cache_block = 128;
  if (o.indexer && !o.norm.quantises())
    throw CLI::ValidationError("--indexer needs --quant-scheme, as its queries have codes");
  if (o.indexer && !o.has_cache())
    throw CLI::ValidationError("--indexer needs --cache, where its keys go");
  if (o.cache_tail != 0 && !o.has_codes())
    throw CLI::ValidationError("--cache-tail needs --cache f8_e4m3, f8_e5m2 or i8");
  if (o.head_weights_factor != 0 && !o.indexer)
    throw CLI::ValidationError("--head-weights-factor needs --indexer");
  o.mrope.assign(options.mrope.begin(), options.mrope.end());
}

void add_layer(CLI::App& command, HeadsCommandOptions& options) {
  NormHeadsOptions& o = options.layer;
  const auto number = [&](const char* name, int64_t& value, const char* text, int64_t least) {
    add_number(command, name, value, text, least, kMostExtent)->group("Layer");
  };
  const auto choice = [&](const char* name, std::string& value, std::vector<std::string> names,
                          const char* text, const char* group) {
    command.add_option(name, value, text)
        ->check(CLI::IsMember(std::move(names)))
        ->capture_default_str()
        ->group(group);
  };
  number("--tokens", o.tokens, "tokens", 0);
  number("--query-heads", o.query_heads, "query heads", 1);
  number("--key-heads", o.key_heads, "key heads, and as many value heads", 1);
  number("--head-dim", o.columns, "columns of a head", 1);
  choice("--dtype", o.dtype, row_dtype_names(), "of the heads", "Layer");
  command.add_option("--parameter-dtype", o.parameter_dtype, "of the weights; default: the heads'")
      ->check(CLI::IsMember(row_dtype_names()))
      ->group("Layer");
  command
      .add_option("--y-dtype", o.y_dtype, "of the results: the heads' or f32; default: the heads'")
      ->check(CLI::IsMember(row_dtype_names()))
      ->group("Layer");
  command.add_flag("--separate", o.separate, "three buffers, in place of one of all heads")
      ->group("Layer");
  command.add_flag("--in-place", o.in_place, "results over query and key")->group("Layer");
  number("--table-rows", o.table_rows, "rows of the tables, which are positions", 1);
  choice("--table-dtype", o.table_dtype, row_dtype_names(), "of the tables", "Layer");
  command.add_flag("--no-norm", o.no_norm, "query and key are not normalised")->group("Norm");
  command.add_flag("--no-weight", o.no_weight, "the norm has no weights")->group("Norm");
  command.add_flag("--head-weights", o.head_weights, "a row of weights for each head")
      ->group("Norm");
  command.add_flag("--across-heads", o.across_heads, "one statistic for all heads of a token")
      ->group("Norm");
  command.add_flag("--statistics", o.statistics, "rstd is stored, and the mean (layer)")
      ->group("Norm");
  command.add_flag("--sumsq", o.sumsq, "sums of squares are stored (layer: means and sums)")
      ->group("Norm");
  command
      .add_flag("--statistics-in", o.statistics_in,
                "rstd is given, and the mean (layer); a file has --query-rstd-in ..")
      ->group("Norm");
  command.add_flag("--no-y", o.no_y, "normalised query and key are not stored")->group("Layer");
  command
      .add_flag("--indexer", o.indexer,
                "heads of a sparse attention's indexer: a query without a norm, with codes and "
                "head weights; a key with a bias, whose codes go to the cache alone; no value")
      ->group("Layer");
  command
      .add_option("--head-weights-factor", o.head_weights_factor,
                  "of --indexer: what head weights are multiplied by, besides the scale; 0 = 1")
      ->group("Layer");
  add_number(command, "--rope-dim", o.rope_dim, "columns that turn; 0 = none; default: all", 0,
             kMostExtent)
      ->group("Rope");
  add_number(command, "--rope-offset", o.rope_offset,
             "first column that turns; -1 = the last columns", -1, kMostExtent)
      ->group("Rope");
  command.add_flag("--interleaved", o.interleaved, "pairs are neighbours (GPT-J)")->group("Rope");
  command.add_flag("--inverse", o.inverse, "turn back")->group("Rope");
  add_sizes(command, "--mrope", options.mrope,
            "pairs of each axis, such as 16x24x24; positions are [axes, tokens]",
            {0, kMostExtent, 1, 4})
      ->group("Rope");
  command.add_flag("--mrope-interleaved", o.mrope_interleaved, "the axes alternate (Qwen3-VL)")
      ->group("Rope");
  command.add_flag("--from-rounded", o.from_rounded, "round between norm and rope")->group("Rope");
  choice("--rope-rounding", o.rope_rounding, {"once", "every-step"}, "where rope rounds", "Rope");
  choice("--cache", o.cache, {"own", "none", "f8_e4m3", "f8_e5m2", "i8"},
         "dtype of key and value cache; own: the heads'", "Cache");
  choice("--cache-scheme", o.cache_scheme, {"per-tensor", "per-block"},
         "one scale (1/32) for codes, or one for each block", "Cache");
  add_number(command, "--cache-block", o.cache_block, "columns of a block: 64 or 128; default: 128",
             0, kMostExtent)
      ->group("Cache");
  command.add_flag("--cache-pow2", o.cache_pow2, "scales of blocks are powers of two")
      ->group("Cache");
  add_number(command, "--cache-rotation", o.cache_rotation,
             "columns of a block that a Hadamard matrix multiplies before: 16, 32, 64 or 128; 0 = "
             "none",
             0, INT32_MAX)
      ->group("Cache");
  add_number(command, "--cache-tail", o.cache_tail,
             "last columns of a head that are stored as the heads' dtype behind the codes, in a "
             "tensor of their own",
             0, INT32_MAX)
      ->group("Cache");
  add_number(command, "--page", o.page, "tokens of a page", int64_t{1}, kMostExtent)
      ->group("Cache");
  o.norm.add_statistic_to(command);
  o.norm.add_quant_to(command);
  add_tuning_option(command, &options.tuning);
  add_threads_option(command, &options.threads);
  command.add_flag("--json", options.json, "print JSON");
}

void add_run_heads(CLI::App& family) {
  auto options = std::make_shared<HeadsCommandOptions>();
  CLI::App* command = family.add_subcommand(
      "run", "Random data, compared with the formula; or tensors of a file into another");
  command->footer(
      "Without files the call runs twice on random data. Bits must be equal. A stored value may "
      "be\n"
      "off by a unit roundoff for each rounding that the options name, and 2^-18 of what it is "
      "the\n"
      "sum of; a code by half a step more. Each eighth token is padding, without a slot.");
  command->add_option("IN", options->input, "safetensors file to read; default: random data")
      ->type_name("FILE");
  command->add_option("OUT", options->output, "safetensors file to write: query, key, key_cache ..")
      ->type_name("FILE");
  HeadsNames& names = options->names;
  const auto input = [&](const char* name, std::string& value, const char* text) {
    command->add_option(name, value, text)->type_name("NAME")->group("Tensors of IN");
  };
  input("--query", names.x[kQuery], "[tokens, heads, d] of f32, f16 or bf16");
  input("--key", names.x[kKey], "likewise");
  input("--value", names.x[kValue], "likewise; needs --slots");
  input("--query-weight", names.weight[kQuery], "[d] or [heads, d]; default: 1");
  input("--key-weight", names.weight[kKey], "likewise");
  input("--cos", names.cos, "[positions, rope dim / 2] or [positions, rope dim]; default: no rope");
  input("--sin", names.sin, "as --cos");
  input("--query-rstd-in", names.rstd_in[kQuery],
        "[tokens, heads] f32, in place of the row's; --across-heads: [tokens]");
  input("--key-rstd-in", names.rstd_in[kKey], "likewise");
  input("--query-mean-in", names.mean_in[kQuery], "likewise (layer)");
  input("--key-mean-in", names.mean_in[kKey], "likewise (layer)");
  input("--positions", names.positions,
        "[tokens] or, with --mrope, [axes, tokens], i32 or i64; default: each token's number");
  input("--slots", names.slots,
        "[at most tokens] i32 or i64; -1 and tokens behind the last: padding, of which nothing is "
        "written; default: no cache");
  input("--clamp-scale", names.clamp_scale,
        "[1] f32, in place of --clamp: clamp to +- its value if that is > 0");
  input("--rotation-signs", names.rotation_signs,
        "f32 of 1 and -1, [d] or [--rotation]; of the quantised heads; default: 1");
  add_layer(*command, *options);
  add_number(*command, "--seed", options->layer.seed, "of the random data", 0, INT32_MAX);
  add_number(*command, "--check-tokens", options->check_tokens, "tokens compared, spread over all",
             int64_t{1}, int64_t{1} << 31);
  add_device_option(*command, &options->device, false);
  set_examples(*command, {"fastnorm norm_heads run --tokens 64 --head-dim 128 --cache f8_e4m3",
                          "fastnorm norm_heads run layer.safetensors out.safetensors --query q \\",
                          "    --key k --value v --cos cos --sin sin --slots slots"});
  command->callback([options] {
    check_layer(*options);
    if (options->input.empty()) {
      if (options->layer.rope_dim < 0) {
        options->layer.rope_dim = static_cast<int32_t>(options->layer.columns);
      }
      run_random_heads(*options);
      return;
    }
    if (options->output.empty()) throw CLI::ValidationError("OUT is missing beside IN");
    check_heads_names(options->names);
    run_file_heads(*options);
  });
}

void add_explain_heads(CLI::App& family) {
  auto options = std::make_shared<HeadsCommandOptions>();
  CLI::App* command = family.add_subcommand(
      "explain", "What a call would do: kernel, workspace, bytes. Nothing runs");
  add_layer(*command, *options);
  add_device_option(*command, &options->device, true);
  set_examples(*command, {"fastnorm norm_heads explain --tokens 4096 --device sm_90",
                          "fastnorm norm_heads explain --tokens 4096 --cache f8_e4m3 --json"});
  command->callback([options] {
    check_layer(*options);
    if (options->layer.rope_dim < 0) {
      options->layer.rope_dim = static_cast<int32_t>(options->layer.columns);
    }
    run_explain_heads(*options);
  });
}

void add_bench_heads(CLI::App& family) {
  auto options = std::make_shared<HeadsCommandOptions>();
  CLI::App* command =
      family.add_subcommand("bench", "Time a random layer's call beside a copy of its bytes");
  command->footer(
      "Bytes are those that \"explain\" tells: each input read once, each output written once. "
      "The\n"
      "copy is made in the same run. fastnorm_bench measures more ceilings.");
  add_layer(*command, *options);
  add_number(*command, "--seed", options->layer.seed, "of the random data", 0, INT32_MAX);
  add_device_option(*command, &options->device, false);
  add_number(*command, "--repeats", options->repeats, "samples; the median counts", 1, 10000);
  add_output_option(*command, &options->output);
  set_examples(*command, {"fastnorm norm_heads bench --tokens 256",
                          "fastnorm norm_heads bench --tokens 4096 --device cuda:0"});
  command->callback([options] {
    check_layer(*options);
    if (options->layer.tokens == 0) {
      throw CLI::ValidationError(
          "--tokens is 0; required: at least 1, as there is nothing to time");
    }
    if (options->layer.rope_dim < 0) {
      options->layer.rope_dim = static_cast<int32_t>(options->layer.columns);
    }
    run_bench_heads(*options);
  });
}

}  // namespace

void add_norm_heads(CLI::App& program) {
  CLI::App* family = program.add_subcommand(
      "norm_heads", "Norm, rope and paged cache of a layer's query, key and value heads");
  family->require_subcommand(1);
  add_run_heads(*family);
  add_explain_heads(*family);
  add_bench_heads(*family);
  set_examples(*family, {"fastnorm norm_heads run --tokens 64",
                         "fastnorm norm_heads explain --tokens 4096 --device sm_90"});
}

}  // namespace fastnorm::tool
