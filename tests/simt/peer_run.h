// Ranks of peers on the SIMT machine: each has a buffer and counters in host memory, and their
// kernels run together.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/peer/plan.h"
#include "cuda/peer/params.h"
#include "simt/machine.h"

namespace simt {

class PeerRanks {
 public:
  explicit PeerRanks(const fastnorm::PeerDesc& desc);

  // What rank r's calls have in common.
  const fastnorm::cuda::PeerExchange& exchange(int32_t r) const {
    return ranks_[static_cast<size_t>(r)]->exchange;
  }
  fastnorm::cuda::PeerControl& control(int32_t r) {
    return ranks_[static_cast<size_t>(r)]->control;
  }
  uint32_t report(int32_t r) const { return ranks_[static_cast<size_t>(r)]->report; }
  void reset();

  // Runs the plan's kernel on all ranks that have parameters. What was wrong with their accesses,
  // "" = nothing.
  std::string run(const fastnorm::PeerPlan& plan,
                  const std::vector<fastnorm::cuda::PeerNormParams>& params, Order order);
  std::string run(const fastnorm::PeerPlan& plan,
                  const std::vector<fastnorm::cuda::PeerSumParams>& params, Order order);
  std::string run(const fastnorm::PeerPlan& plan,
                  const std::vector<fastnorm::cuda::PeerStatisticsParams>& params, Order order);
  std::string run(const fastnorm::PeerPlan& plan,
                  const std::vector<fastnorm::cuda::PeerShardedParams>& params, Order order);

 private:
  struct Rank {
    std::vector<std::byte> memory;
    fastnorm::cuda::PeerControl control;
    uint32_t report;
    fastnorm::cuda::PeerExchange exchange;
  };
  const uint64_t bytes_;  // of a rank's buffer
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace simt
