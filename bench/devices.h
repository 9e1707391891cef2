// The two kinds of device a benchmark runs on.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "bench/report.h"

namespace bench {

struct Options {
  int replays = 9;  // of each graph (CPU: passes); medians are over these
  bool f32_parameters = false;
  int threads = 1;  // CPU
};

// Times the cases on CUDA device `id` and prints a row each. Returns the document: device, driver, results.
nlohmann::json bench_cuda(int id, const std::vector<Case>& cases, const Options& options);

// Times the cases on the CPU.
nlohmann::json bench_cpu(const std::vector<Case>& cases, const Options& options);

// Nanoseconds of check, plan and parameters: calls of a context that launches nothing. Needs no GPU.
nlohmann::json bench_host_cost(int capability);

}  // namespace bench
