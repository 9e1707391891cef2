// fastnorm_nccl_bench: whether libfastnorm_nccl gives the right bits on several GPUs of one
// process, and then what its calls take beside NCCL's functions.
#include "bench/nccl.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "bench/report.h"

namespace {

std::vector<std::string> default_shapes() {
  std::vector<std::string> shapes;
  for (const char* rows : {"1", "8", "32", "128", "1024", "4096"}) {
    for (const char* columns : {"4096", "8192"})
      shapes.push_back(std::string(rows) + "x" + columns);
  }
  return shapes;
}

int rank_count(bool cuda, int wanted) {
  if (!cuda) return wanted == 0 ? 2 : wanted;
  const int found = bench::tool::device_count(FASTNORM_DEVICE_CUDA);
  if (found < 2)
    throw bench::tool::CommandError("GPUs: " + std::to_string(found) + "; required: at least 2");
  const int ranks = wanted == 0 ? found : wanted;
  if (ranks > found) {
    throw bench::tool::CommandError("--ranks is " + std::to_string(ranks) + "; required: 2 to " +
                                    std::to_string(found) + ", the GPUs");
  }
  return ranks;
}

struct Options {
  std::string library = "libnccl.so.2", device = "cuda", csv;
  std::vector<std::string> dtypes = {"bf16", "f16", "f32"};
  int ranks = 0, seconds = 60;
  bool no_checks = false, no_times = false, no_graphs = false;
};

int run(const Options& o, bench::NcclTimeOptions options) {
  const bool cuda = o.device == "cuda";
  bench::Watch watch(o.seconds);
  watch.step("communicators");
  const bench::NcclRanks ranks(o.library, cuda, rank_count(cuda, o.ranks));
  const fastnorm_device_info info = bench::tool::describe_device(ranks.machine(0).target());
  std::printf("%s, %zu ranks, driver %d, NCCL %d\n", info.name, ranks.count(), info.driver_version,
              ranks.version());
  std::fflush(stdout);
  bench::NcclCounts counts;
  if (!o.no_checks) {
    counts = bench::check_nccl_calls(ranks, o.dtypes, watch);
    std::printf("bits: %d passed, %d failed, %d skipped\n", counts.passed, counts.failed,
                counts.skipped);
    std::fflush(stdout);
  }
  if (!o.no_times) {
    nlohmann::json document = {{"device", info.name},
                               {"driver", info.driver_version},
                               {"multiprocessors", info.multiprocessors},
                               {"nccl", ranks.version()},
                               {"ranks", ranks.count()}};
    bool written = true;
    options.save = [&](const nlohmann::json& all) {
      if (!o.csv.empty() && written) written = bench::write_results(o.csv, all);
    };
    const int failed = bench::time_nccl_calls(ranks, options, watch, &document);
    counts.failed += failed + (written ? 0 : 1);
    counts.passed += static_cast<int>(document["results"].size()) - failed;
  }
  watch.step("end");
  std::printf("%d passed, %d failed, %d skipped\n", counts.passed, counts.failed, counts.skipped);
  return counts.failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Checks libfastnorm_nccl on all GPUs of this machine, with one process, and times it beside "
      "NCCL's functions and the norm."};
  Options o;
  bench::NcclTimeOptions options;
  options.shapes = default_shapes();
  app.add_option("--nccl", o.library, "the libnccl.so.2 to use; by default what the loader finds")
      ->capture_default_str();
  app.add_option("--device", o.device,
                 "cuda, or cpu with a library that pretends to be NCCL on host memory")
      ->check(CLI::IsMember({"cuda", "cpu"}))
      ->capture_default_str();
  app.add_option("--ranks", o.ranks, "GPUs 0, 1, ..; by default all, and 2 on a CPU")
      ->check(CLI::Range(2, 64));
  app.add_option("--shapes", options.shapes, "ROWSxN to time, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "medians are over so many")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seconds", o.seconds, "a step that takes longer ends the program")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  app.add_option("--dtypes", o.dtypes, "bf16, f16, f32: whose bits are checked")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "f16", "f32"}))
      ->capture_default_str();
  app.add_flag("--no-graphs", o.no_graphs, "time calls one by one in place of graphs");
  app.add_flag("--no-checks", o.no_checks, "only times");
  app.add_flag("--no-times", o.no_times, "only whether the bits are right");
  app.add_option("--csv", o.csv, "write the times to this file, one line a case");
  CLI11_PARSE(app, argc, argv);
  // NVLink multicast is never used.
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  options.graphs = !o.no_graphs;
  try {
    return run(o, options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fastnorm_nccl_bench: %s\n", e.what());
    return 1;
  }
}
