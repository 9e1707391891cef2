// fastnorm mla_decode: one call on random data, compared with the formula in double precision; its
// profile; its time.
#include <cstdio>
#include <memory>

#include "bench_case.h"
#include "commands.h"
#include "help.h"
#include "json.h"
#include "mla_decode_case.h"
#include "norm_options.h"
#include "progress.h"
#include "shape.h"

namespace fastnorm::tool {
namespace {

struct CommandOptions {
  MlaDecodeOptions batch;
  std::string device = "cpu", profile, json_file;
  int32_t threads = 1, repeats = 9;
  int64_t check_rows = 64;
  bool json = false;
};

Json describe(const CommandOptions& options, const MlaDecodeShape& shape) {
  const MlaDecodeOptions& b = options.batch;
  return {{"batch", b.batch},
          {"heads", b.heads},
          {"tokens", shape.tokens},
          {"max_new_tokens", shape.max_new},
          {"cached_tokens", shape.total_kv},
          {"page", b.page},
          {"pages", shape.pages},
          {"dtype", b.dtype},
          {"causal", b.causal},
          {"table", b.topk != 0 ? "none" : (b.csr ? "csr" : "block")},
          {"cache", b.is_bytes() ? b.cache : (b.separate ? "separate" : "fused")},
          {"topk", b.topk},
          {"topk_lengths", b.topk_lengths},
          {"extra_topk", b.extra_topk},
          {"sink", b.sink},
          {"lse_base", b.lse_base},
          {"sm_scale", b.scale},
          {"split_tokens", b.split_tokens},
          {"seed", b.seed},
          {"bytes_moved", shape.bytes_moved()},
          {"flops", shape.flops()}};
}

Json describe_machine(const CommandOptions& options, const fastnorm_device_info& device) {
  return {{"library", fastnorm_version_string()},
          {"device", device.name},
          {"kernels", device.kernel_arch},
          {"threads", options.threads}};
}

// --- run ---

// Bytes of the profile for a number of events, which the query tells without a profile.
uint64_t profile_bytes(MlaDecodeCall& call, int32_t events) {
  call.args().profile_events = events;
  return call.query().profile_bytes;
}

void run_once(const CommandOptions& options) {
  const Machine machine(parse_target(options.device), options.threads);
  const fastnorm_device_info device = describe_device(machine.target());
  const MlaDecodeShape shape(options.batch);
  const MlaDecodeInputs data(options.batch, shape);
  MlaDecodeCall call(machine, options.batch, shape, data);
  if (!options.profile.empty()) {
    const auto events = static_cast<int32_t>(options.batch.profile_events);
    call.add_profile(profile_bytes(call, events), events);
    require_writable(options.profile);
  }
  const fastnorm_info info = call.query();
  const Block workspace =
      info.workspace_bytes != 0 ? machine.allocate(info.workspace_bytes) : Block();
  call.poison();
  call.run(workspace, info.workspace_bytes);
  machine.synchronize();
  const std::vector<std::byte> o = call.read_o();
  const std::vector<float> lse = call.read_lse();
  call.poison();
  call.run(workspace, info.workspace_bytes);
  machine.synchronize();
  const bool same_bits =
      call.read_o() == o && std::equal(lse.begin(), lse.end(), call.read_lse().begin());
  const MlaDecodeErrors errors =
      compare_mla_decode(options.batch, shape, data, o, lse, options.check_rows);
  if (!options.profile.empty()) {
    const std::vector<std::byte> bytes = call.read_profile();
    check(fastnorm_profile_write_trace(bytes.data(), bytes.size(), options.profile.c_str(),
                                       FASTNORM_TRACE_CHROME_JSON));
  }
  const bool right = errors.wrong_rows == 0 && same_bits;
  Json document = describe_machine(options, device);
  document["call"] = describe(options, shape);
  document["kernel"] = info.kernel;
  document["launches"] = info.launches;
  document["workspace_bytes"] = info.workspace_bytes;
  document["profile_bytes"] = info.profile_bytes;
  document["checked_rows"] = errors.rows;
  document["empty_rows"] = errors.empty_rows;
  document["wrong_rows"] = errors.wrong_rows;
  document["max_error_o"] = errors.max_o;
  document["max_error_lse"] = errors.max_lse;
  document["error_share_o"] = errors.worst_o;
  document["error_share_lse"] = errors.worst_lse;
  document["same_bits_twice"] = same_bits;
  if (options.json) {
    print_json(document);
  } else {
    clear_progress();
    std::printf("%s, kernels %s, kernel \"%s\", %d launch(es), workspace %llu bytes\n", device.name,
                device.kernel_arch, info.kernel, info.launches,
                static_cast<unsigned long long>(info.workspace_bytes));
    std::printf("%lld request(s), %lld new token(s), %lld cached, %lld heads, %s\n",
                static_cast<long long>(options.batch.batch), static_cast<long long>(shape.tokens),
                static_cast<long long>(shape.total_kv), static_cast<long long>(options.batch.heads),
                options.batch.dtype.c_str());
    std::printf("o: largest error %.3g, %.2f of what is allowed; lse: %.3g, %.2f\n", errors.max_o,
                errors.worst_o, errors.max_lse, errors.worst_lse);
    std::printf(
        "%lld of %lld row(s) compared with the formula in double precision, %lld wrong, "
        "%lld empty; run twice: %s bits\n",
        static_cast<long long>(errors.rows), static_cast<long long>(shape.rows),
        static_cast<long long>(errors.wrong_rows), static_cast<long long>(errors.empty_rows),
        same_bits ? "the same" : "other");
    if (!options.profile.empty()) std::printf("trace: %s\n", options.profile.c_str());
  }
  if (!right) {
    throw CommandError(errors.wrong_rows != 0
                           ? std::to_string(errors.wrong_rows) + " rows are wrong"
                           : std::string("two equal calls gave different bits"));
  }
}

// --- bench ---

void run_bench(const CommandOptions& options) {
  if (!options.json_file.empty()) require_writable(options.json_file);
  const Machine machine(parse_target(options.device), options.threads);
  const fastnorm_device_info device = describe_device(machine.target());
  const MlaDecodeShape shape(options.batch);
  const MlaDecodeInputs data(options.batch, shape);
  // Several caches, so that none is found in a cache of the machine.
  constexpr size_t kColdBytes = size_t{512} << 20, kCacheBytes = size_t{1} << 20, kMaxSets = 64;
  const bool cuda = machine.target().is_cuda(), cold = cuda || shape.cache_bytes() > kCacheBytes;
  const size_t sets = cuda   ? std::clamp<size_t>(kColdBytes / shape.cache_bytes(), 2, kMaxSets)
                      : cold ? 2
                             : 1;
  std::vector<std::unique_ptr<MlaDecodeCall>> calls;
  TimedCalls timed = {{}, {}, shape.cache_bytes(), cold};
  for (size_t i = 0; i < sets; ++i) {
    calls.push_back(std::make_unique<MlaDecodeCall>(machine, options.batch, shape, data));
    calls.back()->add_spare();
    timed.sets.push_back({calls.back()->cache_memory(), calls.back()->spare_memory()});
  }
  const fastnorm_info info = calls[0]->query();
  const Block workspace =
      info.workspace_bytes != 0 ? machine.allocate(info.workspace_bytes) : Block();
  check(fastnorm_mla_decode_prepare(machine.context(), &calls[0]->args()));
  calls[0]->run(workspace, info.workspace_bytes);  // makes the plan, which is timed for itself
  timed.run = [&](size_t i) { calls[i]->run(workspace, info.workspace_bytes); };
  const Timing planned = time_calls(machine, timed, options.repeats, options.threads);
  Timing timing = planned;
  if (cuda) {
    for (const auto& call : calls) call->args().reuse_plan = 1;
    timing = time_calls(machine, timed, options.repeats, options.threads);
  }
  const double copy_gb = 2 * static_cast<double>(timed.copy_bytes) / timing.copy_us / 1e3;
  const double gb = shape.bytes_moved() / timing.us / 1e3, gflops = shape.flops() / timing.us / 1e3;

  Json document = describe_machine(options, device);
  document["date"] = now_text();
  document["repeats"] = options.repeats;
  document["call"] = describe(options, shape);
  document["kernel"] = info.kernel;
  document["median_us"] = timing.us;
  document["spread"] = timing.spread;
  document["plan_us"] = cuda ? Json(planned.us - timing.us) : Json(nullptr);
  document["gb_per_s"] = gb;
  document["gflop_per_s"] = gflops;
  document["copy_gb_per_s"] = copy_gb;
  document["ratio_to_copy_rate"] = gb / copy_gb;
  document["read_gb_per_s"] = nullptr;
  if (!cuda) {
    document["read_gb_per_s"] = host_read_gb_per_s(timed.sets[0].inputs, timed.copy_bytes,
                                                   options.repeats, options.threads);
  }
  document["cold"] = cold;
  if (!options.json_file.empty()) write_json(options.json_file, document);
  if (options.json) {
    print_json(document);
    return;
  }
  clear_progress();
  std::printf("%s, kernels %s, kernel \"%s\"", device.name, device.kernel_arch, info.kernel);
  if (!cuda) std::printf(", %d thread(s)", options.threads);
  std::printf("\nmedian %.2f us (spread %.0f%%), %.2f GB/s, %.2f GFLOP/s\n", timing.us,
              100 * timing.spread, gb, gflops);
  std::printf("copy in the same run: %.1f GB/s; the call moves its bytes at %.3f of that\n",
              copy_gb, gb / copy_gb);
  if (cuda) std::printf("plan: %.2f us more\n", planned.us - timing.us);
  if (!cuda) {
    std::printf("reading in the same run: %.1f GB/s\n", document["read_gb_per_s"].get<double>());
  }
}

void add_options(CLI::App& command, CommandOptions& options) {
  MlaDecodeOptions& b = options.batch;
  const auto number = [&](const char* name, int64_t& value, const char* text, int64_t least,
                          int64_t most) {
    return add_number(command, name, value, text, least, most);
  };
  constexpr int64_t kMost = int64_t{1} << 24;
  number("--batch", b.batch, "requests", 1, int64_t{1} << 20);
  number("--heads", b.heads, "query heads", 1, kMost);
  add_sizes(command, "--lengths", b.lengths, "cached tokens: one number, or one for each request",
            {int64_t{0}, kMost});
  add_sizes(command, "--new-tokens", b.new_tokens,
            "new tokens, the last of the cached ones: one number, or one for each request",
            {int64_t{0}, kMost});
  number("--page", b.page, "tokens of a page", 1, kMost);
  command.add_option("--dtype", b.dtype, "of query, cache and output")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}))
      ->capture_default_str();
  command.add_flag("--causal", b.causal, "a new token sees no later one");
  command.add_flag("--csr", b.csr, "a list of pages with offsets, in place of a block table");
  command.add_flag("--separate", b.separate,
                   "latents and rotary parts apart, in place of rows of 576");
  command
      .add_option("--cache", b.cache,
                  "its rows: of the dtype, or of so many bytes with FP8 codes (CPU)")
      ->check(CLI::IsMember({"rows", "656", "576", "584"}))
      ->capture_default_str();
  add_number(command, "--topk", b.topk,
             "each new token selects so many rows of its request at random (CPU); 0: all rows", 0,
             int64_t{1} << 20);
  command.add_flag("--topk-lengths", b.topk_lengths,
                   "of each new token's --topk a random number counts");
  add_number(command, "--extra-topk", b.extra_topk,
             "so many rows more, of a second cache; 0: there is none", 0, int64_t{1} << 20);
  number("--extra-length", b.extra_length, "tokens of each request in the second cache", 0, kMost);
  number("--extra-page", b.extra_page, "tokens of a page of the second cache", 1, kMost);
  command.add_flag("--sink", b.sink, "each head has an attention sink (CPU)");
  command.add_option("--scale", b.scale, "of the scores; default: 1 / sqrt(192)");
  command.add_option("--lse-base", b.lse_base, "natural or 2")
      ->check(CLI::IsMember({"natural", "2"}))
      ->capture_default_str();
  add_number(command, "--split-tokens", b.split_tokens,
             "cut requests every so many tokens, a multiple of 64; 0: as the library likes", 0,
             kMost);
  number("--seed", b.seed, "of the random data", 0, INT32_MAX);
  add_device_option(command, &options.device, false);
  add_threads_option(command, &options.threads);
  command.add_flag("--json", options.json, "print JSON");
}

}  // namespace

void add_mla_decode(CLI::App& program) {
  auto options = std::make_shared<CommandOptions>();
  CLI::App* command = program.add_subcommand(
      "mla_decode", "Run MLA decode attention on random data and compare it with the formula");
  command->footer(
      "A row of o is right if each element is within (|o| + sum of p|v|) / 256 of the formula in\n"
      "double precision (f16: / 1024, f32: / 65536). The call runs twice; bits must be equal.");
  add_options(*command, *options);
  add_number(*command, "--check-rows", options->check_rows, "rows compared, spread over the batch",
             int64_t{1}, int64_t{1} << 31);
  command
      ->add_option("--profile", options->profile,
                   "write a trace of the kernel to this file, for Perfetto (CUDA)")
      ->type_name("FILE");
  options->batch.profile_events = 4096;
  add_number(*command, "--profile-events", options->batch.profile_events, "of each warpgroup", 1,
             1 << 20);

  CLI::App* bench = command->add_subcommand(
      "bench", "Time the call beside a copy; options of mla_decode stand before or after it");
  bench->fallthrough();
  bench->footer(
      "Bytes: query and cached latents read once, o and lse written once. The plan is made once "
      "and\n"
      "reused, as the layers of a model do; its own time is told. fastnorm_bench measures more "
      "ceilings.");
  add_number(*bench, "--repeats", options->repeats, "samples; the median counts", 1, 10000);
  add_output_option(*bench, &options->json_file);
  set_examples(*command, {"fastnorm mla_decode", "fastnorm mla_decode --dtype f32 --seed 2 --json",
                          "fastnorm mla_decode --device cuda:0 --profile trace.json"});
  set_examples(*bench, {"fastnorm mla_decode bench", "fastnorm mla_decode bench --device cuda:0"});
  command->callback([options, bench] {
    try {
      options->batch.expand();
    } catch (const CommandError& e) {
      throw CLI::ValidationError(e.what());
    }
    bench->parsed() ? run_bench(*options) : run_once(*options);
  });
}

}  // namespace fastnorm::tool
