// Parts of fastnorm_nccl_bench.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/nccl_ranks.h"
#include "bench/nccl_watch.h"

namespace bench {

struct NcclCounts {
  int passed = 0, failed = 0, skipped = 0;
};

// Bits of calls by peers and by NCCL, refusals, missing ranks, handles that come and go.
NcclCounts check_nccl_calls(const NcclRanks& ranks, const std::vector<std::string>& dtypes,
                            Watch& watch);

struct NcclTimeOptions {
  std::vector<std::string> shapes;  // ROWSxN
  int rounds = 15;
  bool graphs = true;
  std::function<void(const nlohmann::json&)> save;  // gets the document after each case
};

// Times of the library beside NCCL's functions and fastnorm_norm by hand. Results are compared
// after the times. Returns how many cases failed.
int time_nccl_calls(const NcclRanks& ranks, const NcclTimeOptions& options, Watch& watch,
                    nlohmann::json* document);

}  // namespace bench
