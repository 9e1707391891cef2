// fastnorm selftest: proves that this library computes on this machine what it should.
#include "selftest.h"

#include <chrono>
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

struct SelftestOptions {
  std::string device = "cpu";
  int32_t threads = 1;
  bool print_golden = false, json = false;
  Effort effort;
};

// The lines of selftest_golden.inc.
void print_golden(const Machine& machine, bool json) {
  const std::vector<GoldenHash> hashes = golden_hashes(machine);
  clear_progress();
  Json document = Json::object();
  for (const GoldenHash& h : hashes) {
    document[h.name] = h.hash;
    if (!json) std::printf("%s %s\n", h.hash.c_str(), h.name.c_str());
  }
  if (json) print_json(document);
}

struct FailedError : CommandError {
  using CommandError::CommandError;
};

// The parts one after the other, told as text or kept for JSON.
class Report {
 public:
  explicit Report(bool json) : json_(json) {}

  template <typename Part>
  void run(const char* name, Part part) {
    const auto start = std::chrono::steady_clock::now();
    Tally tally;
    if (!json_) std::printf("%s\n", name);
    std::fflush(stdout);
    part(&tally);
    clear_progress();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (!json_) {
      tally.print();
      std::printf("  %lld passed, %lld failed, %.1f s\n", static_cast<long long>(tally.passed),
                  static_cast<long long>(tally.failed), taken.count());
    }
    parts_.push_back({{"name", name},
                      {"passed", tally.passed},
                      {"failed", tally.failed},
                      {"skipped", tally.skipped},
                      {"seconds", taken.count()},
                      {"failures", tally.failures},
                      {"notes", tally.notes}});
    sum_.passed += tally.passed;
    sum_.failed += tally.failed;
    sum_.skipped += tally.skipped;
  }

  // The sum of all parts.
  const Tally& sum() const { return sum_; }
  const Json& parts() const { return parts_; }

 private:
  bool json_;
  Tally sum_;
  Json parts_ = Json::array();
};

void run_selftest(const SelftestOptions& options) {
  const Machine machine(parse_target(options.device), options.threads);
  if (options.print_golden) return print_golden(machine, options.json);
  const fastnorm_device_info device = describe_device(machine.target());
  clear_progress();
  if (!options.json) {
    std::printf("libfastnorm %s on %s, kernels %s\n", fastnorm_version_string(), device.name,
                device.kernel_arch);
  }
  const Effort& effort = options.effort;
  Report report(options.json);
  report.run(
      "same bits: batch, position, strides, alignment, in place, order of scales, calls, threads",
      [&](Tally* tally) { test_invariance(machine, effort, tally); });
  report.run("same bits as on other machines: hashes",
             [&](Tally* tally) { test_golden(machine, effort, tally); });
  report.run("the same of the backward pass, by layout and threads",
             [&](Tally* tally) { test_backward_golden(machine, effort, tally); });
  report.run("error against double precision",
             [&](Tally* tally) { test_against_double(machine, effort, tally); });
  report.run(
      effort.full ? "reciprocal root, every float" : "reciprocal root, sampled (--full: all)",
      [&](Tally* tally) { test_root(machine, effort, tally); });
  report.run(
      effort.full ? "sigmoid and silu, every float" : "sigmoid and silu, sampled (--full: all)",
      [&](Tally* tally) { test_functions(machine, effort, tally); });
  const Tally& sum = report.sum();
  if (options.json) {
    print_json({{"date", now_text()},
                {"library", fastnorm_version_string()},
                {"device", device.name},
                {"kernels", device.kernel_arch},
                {"threads", options.threads},
                {"full", effort.full},
                {"every", effort.every},
                {"passed", sum.passed},
                {"failed", sum.failed},
                {"skipped", sum.skipped},
                {"parts", report.parts()}});
  } else {
    std::printf("%lld passed, %lld failed, %lld skipped\n", static_cast<long long>(sum.passed),
                static_cast<long long>(sum.failed), static_cast<long long>(sum.skipped));
  }
  if (sum.failed != 0) throw FailedError("selftest: this machine does not compute as it should");
}

}  // namespace

void add_selftest(CLI::App& program) {
  auto options = std::make_shared<SelftestOptions>();
  CLI::App* command = program.add_subcommand(
      "selftest", "Prove this machine: same bits, known hashes, error bounds, the exact root");
  add_device_option(*command, &options->device, false);
  add_threads_option(*command, &options->threads);
  command->add_flag(
      "--full", options->effort.full,
      "root, sigmoid and silu of every float (on a CPU minutes, divided by --threads)");
  command->add_option("--every", options->effort.every, "one of so many cases, for a quick look")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  command->add_flag("--print-golden", options->print_golden,
                    "only print this machine's hashes, for the table in the source");
  command->add_flag("--json", options->json, "print JSON");
  set_examples(*command, {"fastnorm selftest", "fastnorm selftest --threads 3 --every 7 --json",
                          "fastnorm selftest --full --device cuda:0"});
  command->callback([options] { run_selftest(*options); });
}

}  // namespace fastnorm::tool
