// fastnorm tune: measures the kernels for shapes on this GPU. It writes rules where one is faster
// than the library's choice (--output), or every time of every kernel (--csv).
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

#include "commands.h"
#include "help.h"
#include "norm_options.h"
#include "progress.h"
#include "shape.h"
#include "tune_csv.h"
#include "tune_json.h"

namespace fastnorm::tool {
namespace {

std::vector<int64_t> ascending(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

struct TuneOptions {
  std::vector<int64_t> rows = ascending(model_rows()), n = ascending(model_lengths());
  TimedOptions timed;
  std::string device = "cuda:0", output, csv;
  double gain = 0.02, seconds = 0;  // 0: no limit
  int rounds = 1;
  bool all = false, resume = false, json = false;
};

// What --csv times unless --op says otherwise.
std::vector<std::string> csv_ops() {
  return {"rms", "add", "layer", "rms_fp8", "add_fp8", "rms_row_fp8"};
}

// The rows of each series in order, which the rules need.
std::vector<BenchCase> make_cases(const TuneOptions& options) {
  const std::vector<int64_t> all_rows = ascending(options.rows);
  std::vector<BenchCase> cases;
  for (const std::string& dtype : options.timed.dtypes) {
    for (const std::string& op : options.timed.ops) {
      for (const int64_t n : options.n) {
        for (const int64_t rows : all_rows) cases.push_back({op, dtype, rows, n});
      }
    }
  }
  return cases;
}

// "256x4", or "few 256x2 1x2x0" of a backward pass.
std::string tile_of(const BenchCase& c, const std::string& kernel) {
  if (c.is_backward()) {
    for (const char* form : {" few ", " persistent ", " rows "}) {
      if (const size_t at = kernel.find(form); at != std::string::npos)
        return kernel.substr(at + 1);
    }
  }
  return kernel.substr(kernel.rfind(' ') + 1) +
         (kernel.find(" wide ") != std::string::npos ? " wide" : "");
}

// Characters of a column that has tiles.
int tile_width(const TuneOptions& options) {
  const std::vector<std::string>&ops = options.timed.ops, gradients = backward_ops();
  return std::find_first_of(ops.begin(), ops.end(), gradients.begin(), gradients.end()) == ops.end()
             ? 10
             : 24;
}

// Text at once, or JSON in the end. What is told is told one case or kernel after the other.
class TuneReport {
 public:
  TuneReport(const TuneOptions& options, const fastnorm_device_info& device)
      : json_(options.json), width_(tile_width(options)) {
    document_ = {{"date", now_text()},
                 {"library", fastnorm_version_string()},
                 {"device", device.name},
                 {"kernels", device.kernel_arch},
                 {"file", options.csv.empty() ? options.output : options.csv}};
    clear_progress();
  }

  bool json() const { return json_; }
  int width() const { return width_; }
  void add(const char* list, Json entry) { document_[list].push_back(std::move(entry)); }
  void set(const char* key, Json value) { document_[key] = std::move(value); }
  void end() const {
    if (json_) print_json(document_);
  }

  void time(const BenchCase& c, const std::string& kernel, double us);
  void finding(const Finding& found);
  void not_measured(const BenchCase& c, const char* why);

 private:
  const bool json_;
  const int width_;
  Json document_;
};

void TuneReport::time(const BenchCase& c, const std::string& kernel, double us) {
  if (json_) {
    Json entry = to_json(c);
    entry["kernel"] = kernel;
    entry["us"] = us;
    return add("times", std::move(entry));
  }
  clear_progress();
  std::printf("%-15s %-5s %10lld %8lld  %9.2f  %s\n", c.op.c_str(), c.dtype.c_str(),
              static_cast<long long>(c.rows), static_cast<long long>(c.n), us, kernel.c_str());
}

void TuneReport::finding(const Finding& f) {
  if (json_) return add("results", to_json(f));
  clear_progress();
  std::printf("%-15s %-5s %10lld %8lld  %-*s %9.2f  %-*s %9.2f %6.1f%%\n", f.c.op.c_str(),
              f.c.dtype.c_str(), static_cast<long long>(f.c.rows), static_cast<long long>(f.c.n),
              width_, tile_of(f.c, f.choice).c_str(), f.choice_us, width_,
              tile_of(f.c, f.best).c_str(), f.best_us, 100 * (f.choice_us / f.best_us - 1));
  std::fflush(stdout);
}

void TuneReport::not_measured(const BenchCase& c, const char* why) {
  if (json_) {
    Json entry = to_json(c);
    entry["reason"] = why;
    return add("not_measured", std::move(entry));
  }
  clear_progress();
  std::printf("%-15s %-5s %10lld %8lld  not measured: %s\n", c.op.c_str(), c.dtype.c_str(),
              static_cast<long long>(c.rows), static_cast<long long>(c.n), why);
}

// Times the kernels of one case, each in a context of its own that has a rule for it.
class CaseTimer {
 public:
  CaseTimer(const Machine& machine, const Planner& planner, const BenchCase& c, int repeats)
      : machine_(machine), planner_(planner), c_(c), repeats_(repeats) {
    if (c.is_backward()) {
      backward_memory_ = std::make_unique<BackwardMemory>(machine, c);
    } else {
      memory_ = std::make_unique<CaseMemory>(machine, c);
    }
  }

  std::optional<Timing> time(const std::string& kernel) const {
    const MemoryFile file(tuning_head(planner_.arch()) + tuning_rule(c_.rows, c_.rows, c_, kernel));
    const Machine tuned(machine_.target(), 0, file.path());
    // Clusters that this device has no room for.
    if (kernel_of(tuned.context(), tuned.target(), c_) != kernel) return {};
    if (backward_memory_ != nullptr)
      return time_calls(tuned, backward_memory_->calls(tuned), repeats_, 1);
    return time_workload(tuned, memory_->workload(), repeats_, 1);
  }

 private:
  const Machine& machine_;
  const Planner& planner_;
  const BenchCase c_;
  const int repeats_;
  std::unique_ptr<const CaseMemory> memory_;  // one of these
  std::unique_ptr<BackwardMemory> backward_memory_;
};

Finding measure_case(const TuneOptions& options, const Machine& machine, const Planner& planner,
                     const BenchCase& c, FirstDiscarded* first, TuneReport* report) {
  const CaseTimer timer(machine, planner, c, options.timed.repeats);
  const TimeKernel time_kernel = [&](const std::string& kernel) { return timer.time(kernel); };
  return find_best(planner, c, options.gain,
                   [&](const std::string& kernel) -> std::optional<double> {
                     const std::optional<Timing> time = first->time(time_kernel, kernel);
                     if (!time) return {};
                     if (options.all) report->time(c, kernel, time->us);
                     return time->us;
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
  FirstDiscarded first;
  std::ptrdiff_t rules = write_rules(options.output, head, findings);
  TuneReport report(options, device);
  if (!options.json) {
    std::printf("%s, kernels %s\n%-15s %-5s %10s %8s  %-*s %9s  %-*s %9s %7s\n", device.name,
                device.kernel_arch, "op", "dtype", "rows", "n", report.width(), "choice", "us",
                report.width(), "fastest", "us", "gain");
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    show_progress(i, cases.size(), cases[i].name());
    try {
      findings.push_back(measure_case(options, machine, planner, cases[i], &first, &report));
    } catch (const support::DevmemError& e) {  // a shape that the memory does not hold
      report.not_measured(cases[i], e.what());
      continue;
    }
    report.finding(findings.back());
    rules = write_rules(options.output, head, findings);
  }
  clear_progress();
  report.set("rules", rules);
  report.end();
  if (!options.json) std::printf("%s: %td rules\n", options.output.c_str(), rules);
  if (findings.size() != cases.size()) {
    throw CommandError(std::to_string(cases.size() - findings.size()) + " of " +
                       std::to_string(cases.size()) + " shapes could not be measured");
  }
}

void run_csv(TuneOptions options) {
  const Machine machine(parse_target(options.device), 0);
  const fastnorm_device_info device = describe_device(machine.target());
  const Planner planner(device.kernel_arch, machine.context(), machine.target());
  TuneCsv csv(options.csv,
              {device.name, std::to_string(device.driver_version), fastnorm_version_string(),
               std::to_string(fastnorm_numeric_version())},
              options.resume);
  TuneReport report(options, device);
  if (!options.json) {
    std::printf("%s, kernels %s; %s has %zu times%s\n", device.name, device.kernel_arch,
                options.csv.c_str(), csv.lines(),
                csv.dropped_torn_line() ? "; its last line was torn and is dropped" : "");
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  std::unique_ptr<CaseTimer> timer;  // of one case at a time: it may need most of the memory
  const TuneRun run = {
      planner,
      tune_cases(options.timed.ops, options.timed.dtypes, options.n, options.rows),
      options.rounds,
      [&](const BenchCase& c) -> TimeKernel {
        timer.reset();
        timer = std::make_unique<CaseTimer>(machine, planner, c, options.timed.repeats);
        return [&, c](const std::string& kernel) {
          const std::optional<Timing> time = timer->time(kernel);
          if (time && options.all) report.time(c, kernel, time->us);
          return time;
        };
      },
      [&] {
        const std::chrono::duration<double> taken = Clock::now() - start;
        return options.seconds > 0 && taken.count() >= options.seconds;
      },
      [](size_t done, size_t all, const BenchCase& c) { show_progress(done, all, c.name()); }};
  const TuneCounts counts = run_tune_csv(run, &csv);
  clear_progress();
  report.set("dropped_torn_line", csv.dropped_torn_line());
  report.set("counts", to_json(counts));
  if (options.json) return report.end();
  std::printf(
      "%zu times written, %zu found, %d discarded (the first of a run), %zu kernels that this "
      "device cannot run, %zu cases that the memory does not hold, %zu of %zu cases left\n",
      counts.written, counts.had, counts.discarded, counts.cannot_run, counts.too_large,
      counts.left, run.cases.size() * static_cast<size_t>(options.rounds));
}

std::string check_gpu(const std::string& text) {
  return check_device(text).empty() && text != "cpu" ? "" : "'" + text + "' is not cuda:N";
}

}  // namespace

void add_tune(CLI::App& program) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* command = program.add_subcommand("tune",
                                             "Measure which kernels are fastest on this GPU, and "
                                             "write a file for contexts, or every time");
  command->footer(
      "Each shape is timed on every kernel that holds its rows, as bench does. A context with the "
      "file\n"
      "(options.tuning_file; --tuning of run, bench and explain) runs calls of these shapes on "
      "the\n"
      "kernels in it. Results do not change by a bit. The file is for this model of GPU and this\n"
      "version of the library.\n"
      "With --csv every time becomes a line of a table, for tools/select.py. Shapes come in the\n"
      "order of their importance: a run that stops has a coarser grid, and --resume goes on.\n"
      "The first timing of a run reads up to 15 % fast. It is made twice, and the first is "
      "dropped.");
  CLI::Option_group* const files = command->add_option_group("File", "one of these");
  files->add_option("--output", options->output, "the file of rules to write")->type_name("FILE");
  CLI::Option* const csv = files->add_option(
      "--csv", options->csv, "the table of times to write or, with --resume, to add to");
  csv->type_name("FILE");
  files->require_option(1);
  command->add_flag("--resume", options->resume, "with --csv: time what the file lacks")
      ->needs(csv);
  add_number(*command, "--rounds", options->rounds, "with --csv: times of each kernel and shape", 1,
             100)
      ->needs(csv);
  command
      ->add_option("--seconds", options->seconds,
                   "with --csv: begin no timing after so long; 0 = no limit")
      ->needs(csv)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--device", options->device, "cuda:N")
      ->check(CLI::Validator(check_gpu, ""))
      ->type_name(kGpu)
      ->capture_default_str();
  add_sizes(*command, "--rows", options->rows,
            "numbers of rows; each stands for those down to the next smaller one, the largest for "
            "all above, too",
            {int64_t{1}, int64_t{1} << 31});
  add_sizes(*command, "--n", options->n, "row lengths", {int64_t{1}, int64_t{1} << 24});
  options->timed.add_to(*command, backward_ops());
  command
      ->add_option("--gain", options->gain, "part of the time that a kernel must save to be taken")
      ->check(CLI::Range(0.0, 0.5))
      ->capture_default_str();
  command->add_flag("--all", options->all, "print the time of every kernel, too");
  command->add_flag("--json", options->json, "print JSON");
  set_examples(*command, {"fastnorm tune --device cuda:0 --output tuned.txt --rows 1,4 --n 4096",
                          "fastnorm tune --device cuda:0 --csv times.csv --seconds 600"});
  command->callback([options, command] {
    if (options->csv.empty()) return run_tune(*options);
    if (command->count("--op") == 0) options->timed.ops = csv_ops();
    run_csv(*options);
  });
}

}  // namespace fastnorm::tool
