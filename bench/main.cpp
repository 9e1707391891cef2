// fastnorm_bench: the library against the ceiling of the machine it runs on, in one run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/devices.h"
#include "bench/families.h"
#include "bench/report.h"

namespace {

// A family that is timed in place of norms if it has shapes.
struct Family {
  bench::FamilyBench bench;
  int (*on_cpu)(const bench::FamilyCases& asked, const bench::Options& options);
  int (*on_cuda)(int id, const bench::FamilyCases& asked, const bench::Options& options);
  std::vector<std::string> shapes = {};
};

std::vector<Family> all_families() {
#define FAMILY(name) {bench::name##_bench(), bench::bench_##name##_cpu, bench::bench_##name##_cuda},
  return {FASTNORM_COMMAND_FAMILIES(FAMILY)};
#undef FAMILY
}

// What the command line asks for.
struct Asked {
  std::string device = "cpu", csv;
  std::vector<std::string> lists = {"large"}, ops = {"rms", "add", "layer"}, dtypes = {"bf16"};
  std::vector<Family> families = all_families();
  bench::Options options;
  int host_cost = 0;
};

// Options that say which calls are timed, and where.
void add_cases(CLI::App& app, Asked& asked) {
  app.add_option("--device", asked.device, "cpu or cuda:N")->capture_default_str();
  app.add_option(
         "--shapes", asked.lists,
         "lists (large, decode, middle, small, long, odd, strided, quantised, heads, training, "
         "training_few, training_short, stages, stages_training, cpu) or ROWSxN[+GAP][@SHIFT], "
         "separated by commas: GAP elements between rows, the first row SHIFT elements behind an "
         "aligned address")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option(
         "--ops", asked.ops,
         "rms, layer, add (RMS of a residual sum), add_layer; with _fp8, _row_fp8, "
         "_block_fp8, _mxfp8 or _nvfp4 where codes leave in place of y, before that with _rot16, "
         "_rot32 or _rot128 where blocks of so many columns are rotated first, with _rounded where "
         "the sum and what is normalised are rounded before they are used; qk (query and key "
         "heads of a fused tensor, in place; a shape is TOKENSxHEAD), qk_rounded; rms_backward, "
         "layer_backward (dx, dweight and dbias), add_backward, add_layer_backward (with the "
         "gradient of the stored sum); gated (norm times silu of a gate), gated_before (norm of "
         "x times silu of a gate), sandwich (norm, residual, norm), adaln (gated residual, norm, "
         "scale and shift), each alone or with _backward; adaln_tables (adaln, modulators and "
         "tables of them in f32), modulated (RMS with a weight and a scale)")
      ->delimiter(',')
      ->check(CLI::IsMember(bench::operations()))
      ->capture_default_str();
  for (Family& family : asked.families)
    app.add_option(family.bench.option, family.shapes, family.bench.help)->delimiter(',');
  app.add_option("--dtypes", asked.dtypes, "bf16, f16, f32")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "f16", "f32"}))
      ->capture_default_str();
}

// Options that say how they are timed, and what becomes of the times.
void add_timing(CLI::App& app, Asked& asked) {
  app.add_option("--replays", asked.options.replays,
                 "timed replays of each graph; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--threads", asked.options.threads, "CPU threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--f32-parameters", asked.options.f32_parameters,
               "weight and bias, and their gradients, in f32 beside 16-bit rows");
  app.add_flag("--pdl", asked.options.pdl,
               "CUDA: a second column with programmatic dependent launch between the calls");
  app.add_flag("!--no-constant-weights", asked.options.constant_weights,
               "with --pdl: norms have their default flags, and so read weights behind their wait");
  app.add_option(
         "--chain", asked.options.chain,
         "CUDA: only the time of a norm in a chain of so many, each of which reads what the "
         "one before it wrote; in a graph and launched one by one, and with programmatic "
         "dependent launch off, by default, and with weights that are constant")
      ->check(CLI::Range(1, 10000));
  app.add_option("--host-cost", asked.host_cost,
                 "only the nanoseconds of a call without its launch, planned for a compute "
                 "capability such as 90; needs no GPU");
  app.add_option("--csv", asked.csv, "write the results to this file, one line a case");
}

// Runs cases on the device that is asked for. The number of failures.
template <typename OnCpu, typename OnCuda>
int on_device(const Asked& asked, OnCpu on_cpu, OnCuda on_cuda) {
  if (asked.device != "cpu") return on_cuda(std::stoi(asked.device.substr(5)));
  if (asked.options.pdl) throw std::invalid_argument("--pdl needs --device cuda:N");
  if (asked.options.chain != 0) throw std::invalid_argument("--chain needs --device cuda:N");
  return on_cpu();
}

int run_norms(const Asked& asked) {
  const bench::Options& options = asked.options;
  const auto cases = bench::make_cases(asked.lists, asked.ops, asked.dtypes);
  return on_device(
      asked, [&] { return bench::bench_cpu(cases, options); },
      [&](int id) {
        return options.chain != 0 ? bench::bench_chain_cuda(id, cases, options)
                                  : bench::bench_cuda(id, cases, options);
      });
}

int run_family(const Asked& asked, const Family& family) {
  const bench::FamilyCases cases = {family.shapes, asked.dtypes};
  return on_device(
      asked, [&] { return family.on_cpu(cases, asked.options); },
      [&](int id) { return family.on_cuda(id, cases, asked.options); });
}

// "--a, --b and --c"
std::string all_options(const std::vector<Family>& families) {
  std::string text;
  for (size_t i = 0; i < families.size(); ++i) {
    if (i != 0) text += i + 1 == families.size() ? " and " : ", ";
    text += families[i].bench.option;
  }
  return text;
}

int run(const Asked& asked) {
  if (asked.device != "cpu" && !asked.device.starts_with("cuda:"))
    throw std::invalid_argument("--device is " + asked.device + "; required: cpu or cuda:N");
  const auto is_asked = [](const Family& family) { return !family.shapes.empty(); };
  const auto count = std::count_if(asked.families.begin(), asked.families.end(), is_asked);
  if (count > 1) throw std::invalid_argument(all_options(asked.families) + " exclude each other");
  if (count == 0) return run_norms(asked);
  if (asked.options.chain != 0 || asked.options.f32_parameters)
    throw std::invalid_argument("--chain and --f32-parameters are of norms");
  return run_family(asked, *std::find_if(asked.families.begin(), asked.families.end(), is_asked));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Times libfastnorm against the best plain stream of the same bytes, measured in the same "
      "run."};
  Asked asked;
  add_cases(app, asked);
  add_timing(app, asked);
  CLI11_PARSE(app, argc, argv);
  try {
    bool written = true;
    asked.options.save = [&](const nlohmann::json& document) {
      if (!asked.csv.empty() && written) written = bench::write_results(asked.csv, document);
    };
    int failed = 0;
    if (asked.host_cost != 0) {
      asked.options.save(bench::bench_host_cost(asked.host_cost));
    } else {
      failed = run(asked);
    }
    if (!written || failed != 0) return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fastnorm_bench: %s\n", e.what());
    return 1;
  }
  return 0;
}
