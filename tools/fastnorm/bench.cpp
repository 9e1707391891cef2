// fastnorm bench: times of norms beside a copy of the same bytes.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <memory>

#include "commands.h"
#include "dtype.h"
#include "json.h"
#include "stopwatch.h"

namespace fastnorm::tool {
namespace {

struct BenchOptions {
  std::vector<std::string> shapes = {"1x4096", "128x8192", "4096x4096"};
  std::vector<std::string> ops = {"rms", "add", "layer"};
  std::vector<std::string> dtypes = {"bf16"};
  std::string device = "cpu", json;
  int32_t threads = 1, repeats = 9;
};

struct Case {
  std::string op, dtype;
  int64_t rows, n;

  bool adds() const { return op == "add"; }
  size_t tensor_bytes() const {
    return static_cast<size_t>(rows * n) * element_bytes(find_dtype(dtype)->dtype);
  }
  // x and y; with a residual twice as many.
  size_t bytes_moved() const { return tensor_bytes() * (adds() ? 4 : 2); }
};

// "4096x8192" to rows and columns; false if it is not of that form.
bool parse_shape(const std::string& text, int64_t* rows, int64_t* n) {
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, *rows);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != 'x') return false;
  const auto second = std::from_chars(first.ptr + 1, end, *n);
  return second.ec == std::errc() && second.ptr == end && *rows >= 1 && *n >= 1 &&
         *rows <= INT64_MAX / 64 / *n;
}

std::vector<Case> make_cases(const BenchOptions& options) {
  std::vector<Case> cases;
  for (const std::string& dtype : options.dtypes) {
    for (const std::string& op : options.ops) {
      for (const std::string& shape : options.shapes) {
        Case c{op, dtype, 0, 0};
        parse_shape(shape, &c.rows, &c.n);
        cases.push_back(c);
      }
    }
  }
  return cases;
}

// Buffers and calls of one case. Cases larger than the caches, and all on a GPU, rotate over many
// sets so that nothing is found in a cache.
class CaseMemory {
 public:
  CaseMemory(const Machine& machine, const Case& c) : machine_(machine), case_(c) {
    const fastnorm_dtype dtype = find_dtype(c.dtype)->dtype;
    tensor_bytes_ = (c.tensor_bytes() + 255) / 256 * 256;
    parameter_bytes_ = (static_cast<size_t>(c.n) * element_bytes(dtype) + 255) / 256 * 256;
    const size_t set_bytes = tensor_bytes_ * (c.adds() ? 4 : 2);
    choose_sets(set_bytes);
    memory_ = machine.allocate(2 * parameter_bytes_ + sets_ * set_bytes);
    fill(dtype, 2 * parameter_bytes_ + sets_ * set_bytes);
    parameters_[0] = TensorView(machine.target(), memory_.get(), dtype, {c.n});
    parameters_[1] = TensorView(machine.target(), memory_.get() + parameter_bytes_, dtype, {c.n});
    views_.reserve(4 * sets_);
    for (size_t i = 0; i < sets_; ++i) {
      add_set(memory_.get() + 2 * parameter_bytes_ + i * set_bytes, dtype);
    }
  }

  const Workload& workload() const { return workload_; }

 private:
  void choose_sets(size_t set_bytes) {
    constexpr size_t kGpuColdBytes = size_t{600} << 20, kGpuMaxSets = 256;
    constexpr size_t kCpuColdBytes = size_t{512} << 20, kCacheBytes = size_t{1} << 20;
    if (machine_.target().is_cuda()) {
      sets_ = std::clamp<size_t>(kGpuColdBytes / set_bytes, 2, kGpuMaxSets);
      workload_.cold = true;
    } else {
      workload_.cold = set_bytes > kCacheBytes;
      sets_ = workload_.cold ? std::max<size_t>(2, kCpuColdBytes / set_bytes) : 1;
    }
  }

  // Values near 1 of both signs: speed may depend on how many bits flip.
  void fill(fastnorm_dtype dtype, size_t bytes) {
    const size_t size = element_bytes(dtype), period = std::min<size_t>(bytes, size_t{1} << 20);
    std::vector<std::byte> pattern(period);
    uint64_t state = 1;
    for (size_t i = 0; i + size <= period; i += size) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const auto h = static_cast<double>(static_cast<int32_t>(state >> 32));
      encode(dtype, h * 0x1p-30, &pattern[i]);
    }
    for (size_t at = 0; at < bytes; at += period) {
      machine_.upload(memory_.get() + at, pattern.data(), std::min(period, bytes - at));
    }
  }

  const fastnorm_tensor* view(std::byte* data, fastnorm_dtype dtype) {
    views_.emplace_back(machine_.target(), data, dtype, std::vector<int64_t>{case_.rows, case_.n});
    return views_.back().get();
  }

  void add_set(std::byte* data, fastnorm_dtype dtype) {
    const size_t inputs = case_.adds() ? 2 : 1;
    std::byte* outputs = data + inputs * tensor_bytes_;
    fastnorm_norm_args args = {};
    args.struct_size = sizeof args;
    args.kind = case_.op == "layer" ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
    args.eps = 1e-6f;
    args.x = view(data, dtype);
    args.y = view(outputs, dtype);
    args.weight = parameters_[0].get();
    if (case_.op == "layer") args.bias = parameters_[1].get();
    if (case_.adds()) {
      args.residual = view(data + tensor_bytes_, dtype);
      args.residual_out = view(outputs + tensor_bytes_, dtype);
    }
    workload_.calls.push_back(args);
    workload_.sets.push_back({data, outputs});
    workload_.copy_bytes = inputs * tensor_bytes_;
  }

  const Machine& machine_;
  const Case& case_;
  size_t tensor_bytes_ = 0, parameter_bytes_ = 0, sets_ = 1;
  Block memory_;
  TensorView parameters_[2];
  std::vector<TensorView> views_;
  Workload workload_ = {};
};

struct Result {
  Case c;
  Timing timing;
  bool cold;
  double gb_per_s() const { return static_cast<double>(c.bytes_moved()) / timing.us / 1e3; }
  double ratio() const { return timing.us / timing.copy_us; }
};

void print_result(const Result& r) {
  std::printf("%-6s %-5s %10lld %8lld %11.2f %7.1f %8.3f %5.0f%%  %s\n", r.c.op.c_str(),
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

// A line on a terminal that tells how far it is; nothing where stderr goes to a file.
void show_progress(size_t done, size_t all, const Case* next) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K");
  if (next != nullptr) {
    std::fprintf(stderr, "%zu/%zu %s %s %lldx%lld", done + 1, all, next->op.c_str(),
                 next->dtype.c_str(), static_cast<long long>(next->rows),
                 static_cast<long long>(next->n));
  }
  std::fflush(stderr);
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

void run_bench(const BenchOptions& options) {
  const Machine machine(parse_target(options.device), options.threads);
  const fastnorm_device_info device = describe_device(machine.target());
  std::printf("%s, kernels %s", device.name, device.kernel_arch);
  if (!machine.target().is_cuda()) std::printf(", %d thread(s)", options.threads);
  std::printf("\n%-6s %-5s %10s %8s %11s %7s %8s %6s  %s\n", "op", "dtype", "rows", "n",
              "median us", "GB/s", "x copy", "spread", "data in");
  Json document = {{"date", today()},
                   {"library", fastnorm_version_string()},
                   {"device", device.name},
                   {"kernels", device.kernel_arch},
                   {"threads", options.threads},
                   {"repeats", options.repeats},
                   {"results", Json::array()}};
  const std::vector<Case> cases = make_cases(options);
  for (size_t i = 0; i < cases.size(); ++i) {
    show_progress(i, cases.size(), &cases[i]);
    const CaseMemory memory(machine, cases[i]);
    const Timing timing =
        time_workload(machine, memory.workload(), options.repeats, options.threads);
    const Result result{cases[i], timing, memory.workload().cold};
    show_progress(i, cases.size(), nullptr);
    print_result(result);
    std::fflush(stdout);
    document["results"].push_back(to_json(result));
  }
  if (!options.json.empty()) write_json(options.json, document);
}

std::string check_shape(const std::string& text) {
  int64_t rows = 0, n = 0;
  return parse_shape(text, &rows, &n) ? "" : "'" + text + "' is not ROWSxN, such as 4096x8192";
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
  command->add_option("--shape", options->shapes, "ROWSxN, separated by commas")
      ->delimiter(',')
      ->check(CLI::Validator(check_shape, "ROWSxN"))
      ->capture_default_str();
  command
      ->add_option("--op", options->ops,
                   "rms, add (RMSNorm of x + residual, which is stored) and layer")
      ->delimiter(',')
      ->check(CLI::IsMember({"rms", "add", "layer"}))
      ->capture_default_str();
  command->add_option("--dtype", options->dtypes, "of x, weight, bias and residual")
      ->delimiter(',')
      ->check(CLI::IsMember(row_dtype_names()))
      ->capture_default_str();
  command->add_option("--device", options->device, "cpu or cuda:N")
      ->check(CLI::Validator(check_device, "DEVICE"))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "samples of each case; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--json", options->json, "also write the results to this file");
  command->callback([options] { run_bench(*options); });
}

}  // namespace fastnorm::tool
