// fastnorm bench: times of norms beside a copy of the same bytes.
#include <cstdio>
#include <memory>

#include "bench_case.h"
#include "commands.h"
#include "help.h"
#include "json.h"
#include "norm_options.h"
#include "progress.h"
#include "shape.h"

namespace fastnorm::tool {
namespace {

struct BenchOptions {
  std::vector<std::vector<int64_t>> shapes = {{1, 4096}, {128, 8192}, {4096, 4096}};
  TimedOptions timed;
  std::string device = "cpu", tuning, output;
  int32_t threads = 1;
  bool json = false;
};

std::vector<BenchCase> make_cases(const BenchOptions& options) {
  std::vector<BenchCase> cases;
  for (const std::string& dtype : options.timed.dtypes) {
    for (const std::string& op : options.timed.ops) {
      for (const std::vector<int64_t>& shape : options.shapes) {
        cases.push_back({op, dtype, shape[0], shape[1]});
      }
    }
  }
  return cases;
}

// The time of a case, and whether its memory is larger than the caches.
std::pair<Timing, bool> time_case(const Machine& machine, const BenchCase& c, int repeats,
                                  int threads) {
  if (c.is_backward()) {
    BackwardMemory memory(machine, c);
    const TimedCalls calls = memory.calls(machine);
    return {time_calls(machine, calls, repeats, threads), calls.cold};
  }
  const CaseMemory memory(machine, c);
  return {time_workload(machine, memory.workload(), repeats, threads), memory.workload().cold};
}

struct Result {
  BenchCase c;
  Timing timing;
  bool cold;
  double gb_per_s() const { return static_cast<double>(c.bytes_moved()) / timing.us / 1e3; }
  double ratio() const { return timing.us / timing.copy_us; }
};

void print_result(const Result& r) {
  std::printf("%-15s %-5s %10lld %8lld %11.2f %7.1f %8.3f %5.0f%%  %s\n", r.c.op.c_str(),
              r.c.dtype.c_str(), static_cast<long long>(r.c.rows), static_cast<long long>(r.c.n),
              r.timing.us, r.gb_per_s(), r.ratio(), 100 * r.timing.spread,
              r.cold ? "memory" : "cache");
}

Json to_json(const Result& r) {
  return {{"op", r.c.op},
          {"dtype", r.c.dtype},
          {"rows", r.c.rows},
          {"n", r.c.n},
          {"bytes_moved", r.c.bytes_moved()},
          {"median_us", r.timing.us},
          {"spread", r.timing.spread},
          {"gb_per_s", r.gb_per_s()},
          {"copy_us", r.timing.copy_us},
          {"ratio_to_copy", r.ratio()},
          {"cold", r.cold}};
}

void run_bench(const BenchOptions& options) {
  if (!options.output.empty()) require_writable(options.output);
  const std::vector<BenchCase> cases = make_cases(options);
  const Machine machine(parse_target(options.device), options.threads, options.tuning);
  const fastnorm_device_info device = describe_device(machine.target());
  if (!options.json) {
    clear_progress();
    std::printf("%s, kernels %s", device.name, device.kernel_arch);
    if (!machine.target().is_cuda()) std::printf(", %d thread(s)", options.threads);
    std::printf("\n%-15s %-5s %10s %8s %11s %7s %8s %6s  %s\n", "op", "dtype", "rows", "n",
                "median us", "GB/s", "x copy", "spread", "data in");
  }
  Json document = {{"date", now_text()},         {"library", fastnorm_version_string()},
                   {"device", device.name},      {"kernels", device.kernel_arch},
                   {"threads", options.threads}, {"repeats", options.timed.repeats},
                   {"results", Json::array()}};
  for (size_t i = 0; i < cases.size(); ++i) {
    show_progress(i, cases.size(), cases[i].name());
    const auto [timing, cold] =
        time_case(machine, cases[i], options.timed.repeats, options.threads);
    const Result result{cases[i], timing, cold};
    clear_progress();
    if (!options.json) print_result(result);
    std::fflush(stdout);
    document["results"].push_back(to_json(result));
  }
  if (options.json) print_json(document);
  if (!options.output.empty()) write_json(options.output, document);
}

}  // namespace

void add_bench(CLI::App& program) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = program.add_subcommand(
      "bench",
      "Time norms: median microseconds, GB/s, and time relative to a copy of as many bytes");
  command->footer(
      "The copy is made in the same run, on the same buffers: on the CPU by the program's own "
      "loop\n"
      "with non-temporal stores (in caches the faster of that and memcpy), on a GPU by the "
      "driver's\n"
      "copy inside the device.");
  add_matrices(*command, "--shape", options->shapes, "ROWSxN, with commas between several");
  std::vector<std::string> more = backward_ops();
  for (const std::string& op : stage_ops()) more.push_back(op);
  options->timed.add_to(*command, more);
  add_device_option(*command, &options->device, false);
  add_tuning_option(*command, &options->tuning);
  add_threads_option(*command, &options->threads);
  command->add_flag("--json", options->json, "print JSON");
  add_output_option(*command, &options->output);
  set_examples(*command, {"fastnorm bench --shape 128x8192",
                          "fastnorm bench --op rms,add --dtype bf16,f32 --shape 1x4096,64x4096",
                          "fastnorm bench --op layer --shape 64x4096 --threads 2 --json",
                          "fastnorm bench --op rms --shape 4096x8192 --device cuda:0"});
  command->callback([options] { run_bench(*options); });
}

}  // namespace fastnorm::tool
