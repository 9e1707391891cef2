// fastnorm selftest: proves that this library computes on this machine what it should.
#include "selftest.h"

#include <chrono>
#include <memory>

#include "commands.h"

namespace fastnorm::tool {
namespace {

struct SelftestOptions {
  std::string device = "cpu";
  int32_t threads = 1;
  bool full = false, print_golden = false;
};

struct FailedError : CommandError {
  using CommandError::CommandError;
};

template <typename Part>
void run_part(const char* name, Tally* sum, Part part) {
  const auto start = std::chrono::steady_clock::now();
  Tally tally;
  std::printf("%s\n", name);
  std::fflush(stdout);
  part(&tally);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  std::printf("  %lld passed, %lld failed, %.1f s\n", static_cast<long long>(tally.passed),
              static_cast<long long>(tally.failed), taken.count());
  sum->passed += tally.passed;
  sum->failed += tally.failed;
}

void run_selftest(const SelftestOptions& options) {
  const Machine machine(parse_target(options.device), options.threads);
  if (options.print_golden) return print_golden(machine);
  const fastnorm_device_info device = describe_device(machine.target());
  std::printf("libfastnorm %s on %s, kernels %s\n", fastnorm_version_string(), device.name,
              device.kernel_arch);
  Tally sum;
  run_part(
      "same bits: batch, position, strides, alignment, in place, order of scales, calls, threads",
      &sum, [&](Tally* tally) { test_invariance(machine, tally); });
  run_part("same bits as on other machines: hashes", &sum,
           [&](Tally* tally) { test_golden(machine, tally); });
  run_part("the same of the backward pass, by layout and threads", &sum,
           [&](Tally* tally) { test_backward_golden(machine, tally); });
  run_part("error against double precision", &sum,
           [&](Tally* tally) { test_against_double(machine, tally); });
  run_part(options.full ? "reciprocal root, every float" : "reciprocal root, sampled (--full: all)",
           &sum, [&](Tally* tally) { test_root(machine, options.full, tally); });
  run_part(
      options.full ? "sigmoid and silu, every float" : "sigmoid and silu, sampled (--full: all)",
      &sum, [&](Tally* tally) { test_functions(machine, options.full, tally); });
  std::printf("%lld passed, %lld failed, %lld skipped\n", static_cast<long long>(sum.passed),
              static_cast<long long>(sum.failed), static_cast<long long>(sum.skipped));
  if (sum.failed != 0) throw FailedError("selftest: this machine does not compute as it should");
}

}  // namespace

void add_selftest(CLI::App& program) {
  auto options = std::make_shared<SelftestOptions>();
  CLI::App* command = program.add_subcommand(
      "selftest", "Prove this machine: same bits, known hashes, error bounds, the exact root");
  command->add_option("--device", options->device, "cpu or cuda:N")
      ->check(CLI::Validator(check_device, "DEVICE"))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--full", options->full,
                    "root, sigmoid and silu of every float (minutes on a CPU)");
  command->add_flag("--print-golden", options->print_golden,
                    "only print this machine's hashes, for the table in the source");
  command->callback([options] { run_selftest(*options); });
}

}  // namespace fastnorm::tool
