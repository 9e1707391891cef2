// The two kinds of device a benchmark runs on.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/report.h"

namespace bench {

struct Options {
  int replays = 9;  // of each graph (CPU: passes); medians are over these
  bool f32_parameters = false;
  int threads = 1;               // CPU
  bool pdl = false;              // CUDA: time the calls with programmatic dependent launch too
  bool constant_weights = true;  // with it, norms read weight and bias before they wait
  int chain = 0;                 // CUDA: calls that follow each other; 0: no chains
  std::function<void(const nlohmann::json&)> save;  // gets the document after each case
};

// Times the cases on CUDA device `id` and prints a row each. Returns how many failed. The document
// that is saved has device, driver, results.
int bench_cuda(int id, const std::vector<Case>& cases, const Options& options);

// Times chains of options.chain calls of the cases on CUDA device `id`.
int bench_chain_cuda(int id, const std::vector<Case>& cases, const Options& options);

// Times the cases on the CPU.
int bench_cpu(const std::vector<Case>& cases, const Options& options);

// Nanoseconds of check, plan and parameters: calls of a context that launches nothing. Needs no
// GPU.
nlohmann::json bench_host_cost(int capability);

}  // namespace bench
