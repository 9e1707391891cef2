// fastnorm tune: measures the kernels for shapes on this GPU, and writes those that are faster than the library's choice.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

#include "commands.h"
#include "norm_options.h"
#include "tuning.h"

namespace fastnorm::tool {
namespace {

struct TuneOptions {
  std::vector<int64_t> rows = {1, 16, 128, 512, 1024, 2048, 4096, 16384};
  std::vector<int64_t> n = {1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 14336, 16384};
  TimedOptions timed;
  std::string device = "cuda:0", output;
  double gain = 0.02;
  bool all = false;
};

// The rows of each series in order, which the rules need.
std::vector<BenchCase> make_cases(TuneOptions options) {
  std::sort(options.rows.begin(), options.rows.end());
  options.rows.erase(std::unique(options.rows.begin(), options.rows.end()), options.rows.end());
  std::vector<BenchCase> cases;
  for (const std::string& dtype : options.timed.dtypes) {
    for (const std::string& op : options.timed.ops) {
      for (const int64_t n : options.n) {
        for (const int64_t rows : options.rows) cases.push_back({op, dtype, rows, n});
      }
    }
  }
  return cases;
}

void print_finding(const Finding& f) {
  const auto tile = [](const std::string& kernel) {
    return kernel.substr(kernel.rfind(' ') + 1) +
           (kernel.find(" wide ") != std::string::npos ? " wide" : "");
  };
  std::printf("%-15s %-5s %10lld %8lld  %-10s %9.2f  %-10s %9.2f %6.1f%%\n", f.c.op.c_str(),
              f.c.dtype.c_str(), static_cast<long long>(f.c.rows), static_cast<long long>(f.c.n),
              tile(f.choice).c_str(), f.choice_us, tile(f.best).c_str(), f.best_us,
              100 * (f.choice_us / f.best_us - 1));
}

void print_time(const BenchCase& c, const std::string& kernel, double us) {
  show_progress(0, 0, nullptr);
  std::printf("%-15s %-5s %10lld %8lld  %9.2f  %s\n", c.op.c_str(), c.dtype.c_str(),
              static_cast<long long>(c.rows), static_cast<long long>(c.n), us, kernel.c_str());
}

Finding measure_case(const TuneOptions& options, const Machine& machine, const Planner& planner,
                     const BenchCase& c) {
  const CaseMemory memory(machine, c);
  return find_best(
      planner, c, options.gain, [&](const std::string& kernel) -> std::optional<double> {
        const MemoryFile file(tuning_head(planner.arch()) + tuning_rule(c.rows, c.rows, c, kernel));
        const Machine tuned(machine.target(), 0, file.path());
        fastnorm_info info = {};
        info.struct_size = sizeof info;
        check(fastnorm_norm_query(tuned.context(), &memory.workload().calls[0], &info));
        if (info.kernel != kernel) return {};  // clusters that this device has no room for
        const double us = time_workload(tuned, memory.workload(), options.timed.repeats, 1).us;
        if (options.all) print_time(c, kernel, us);
        return us;
      });
}

// Whole after every shape: what was measured is not lost with what comes after.
std::ptrdiff_t write_rules(const std::string& path, const std::string& head,
                           const std::vector<Finding>& findings) {
  const std::string rules = tuning_rules(findings);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << head << rules << std::flush;
  if (!file) throw CommandError(path + ": cannot be written: " + std::strerror(errno));
  return std::count(rules.begin(), rules.end(), '\n') / 2;
}

void run_tune(const TuneOptions& options) {
  const Machine machine(parse_target(options.device), 0);
  const fastnorm_device_info device = describe_device(machine.target());
  const Planner planner(device.kernel_arch, machine.context(), machine.target());
  const std::string head = tuning_head(planner.arch()) + "# " + device.name + ", " + now_text() +
                           ", driver " + std::to_string(device.driver_version) + "\n";
  const std::vector<BenchCase> cases = make_cases(options);
  std::vector<Finding> findings;
  std::ptrdiff_t rules = write_rules(options.output, head, findings);
  std::printf("%s, kernels %s\n%-15s %-5s %10s %8s  %-10s %9s  %-10s %9s %7s\n", device.name,
              device.kernel_arch, "op", "dtype", "rows", "n", "choice", "us", "fastest", "us",
              "gain");
  for (size_t i = 0; i < cases.size(); ++i) {
    show_progress(i, cases.size(), &cases[i]);
    try {
      findings.push_back(measure_case(options, machine, planner, cases[i]));
    } catch (const support::DevmemError& e) {  // a shape that the memory does not hold
      show_progress(i, cases.size(), nullptr);
      std::printf("%-15s %-5s %10lld %8lld  not measured: %s\n", cases[i].op.c_str(),
                  cases[i].dtype.c_str(), static_cast<long long>(cases[i].rows),
                  static_cast<long long>(cases[i].n), e.what());
      continue;
    }
    show_progress(i, cases.size(), nullptr);
    print_finding(findings.back());
    std::fflush(stdout);
    rules = write_rules(options.output, head, findings);
  }
  std::printf("%s: %td rules\n", options.output.c_str(), rules);
  if (findings.size() != cases.size()) {
    throw CommandError(std::to_string(cases.size() - findings.size()) + " of " +
                       std::to_string(cases.size()) + " shapes could not be measured");
  }
}

std::string check_gpu(const std::string& text) {
  return check_device(text).empty() && text != "cpu" ? "" : "'" + text + "' is not cuda:N";
}

}  // namespace

void add_tune(CLI::App& program) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* command = program.add_subcommand(
      "tune", "Measure which kernels are fastest on this GPU, and write a file for contexts");
  command->footer(
      "Each shape is timed on every kernel that holds its rows, as bench does. A context with the "
      "file\n"
      "(options.tuning_file; --tuning of run, bench and explain) runs calls of these shapes on "
      "the\n"
      "kernels in it. Results do not change by a bit. The file is for this model of GPU and this\n"
      "version of the library.");
  command->add_option("--output", options->output, "the file to write")->required();
  command->add_option("--device", options->device, "cuda:N")
      ->check(CLI::Validator(check_gpu, "DEVICE"))
      ->capture_default_str();
  command
      ->add_option(
          "--rows", options->rows,
          "numbers of rows; each stands for those down to the next smaller one, the largest for "
          "all above, too")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->capture_default_str();
  command->add_option("--n", options->n, "row lengths")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  options->timed.add_to(*command);
  command
      ->add_option("--gain", options->gain, "part of the time that a kernel must save to be taken")
      ->check(CLI::Range(0.0, 0.5))
      ->capture_default_str();
  command->add_flag("--all", options->all, "print the time of every kernel, too");
  command->callback([options] { run_tune(*options); });
}

}  // namespace fastnorm::tool
