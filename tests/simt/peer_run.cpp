#include "simt/peer_run.h"

#include <algorithm>

#include "cuda/peer/kernels.h"
#include "cuda/peer/launch_params.h"

namespace simt {
namespace {

using namespace fastnorm;
using namespace fastnorm::cuda;

// The architecture number that peer_kernels.cpp is compiled with: no GPU's.
constexpr int kSimtNumber = 0;

const PeerKernels& kernels() {
  static const PeerKernels all = all_peer_kernels<kSimtNumber>();
  return all;
}

bool triggers(const PeerNormParams& p) { return (p.norm.bits & kTrigger) != 0; }
bool triggers(const PeerShardedParams& p) { return (p.bits & kTrigger) != 0; }
bool triggers(const PeerSumParams&) { return false; }
bool triggers(const PeerStatisticsParams&) { return false; }

template <class Params, class Kernel>
std::string run_parts(const PeerPlan& plan, Kernel kernel, const std::vector<Params>& params,
                      Order order) {
  if (kernel == nullptr) fault("a plan of another kind of kernel");
  const PeerGrid grid = peer_grid(plan);
  std::vector<Part> parts;
  for (const Params& p : params) {
    const Grid own = {grid.blocks, 1, grid.threads, 1, 0, order, true, triggers(p), {}};
    parts.push_back({own, [=] { kernel(p); }});
  }
  const std::string complaint = launch_together(parts);
  return complaint.empty() ? "" : std::string(plan.entry->name) + ": " + complaint;
}

}  // namespace

PeerRanks::PeerRanks(const PeerDesc& desc) {
  const uint64_t bytes = peer_layout(desc).bytes();
  void* buffers[kMaxRanks] = {};
  for (int32_t r = 0; r < desc.ranks; ++r) {
    ranks_.push_back(std::make_unique<Rank>());
    ranks_.back()->memory.resize(bytes + 256);
    const auto address = reinterpret_cast<uintptr_t>(ranks_.back()->memory.data());
    buffers[r] = reinterpret_cast<void*>((address + 255) / 256 * 256);
  }
  for (int32_t r = 0; r < desc.ranks; ++r) {
    PeerDesc own = desc;
    own.rank = r;
    Rank& rank = *ranks_[static_cast<size_t>(r)];
    rank.exchange = make_peer_exchange(own, buffers, &rank.control, &rank.report);
  }
  reset();
}

void PeerRanks::reset() {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    std::fill(rank->memory.begin(), rank->memory.end(), std::byte{0xff});
    rank->control = {};
    rank->report = 0;
  }
}

std::string PeerRanks::run(const PeerPlan& plan, const std::vector<PeerNormParams>& params,
                           Order order) {
  return run_parts(plan, kernels().at(plan.index).norm, params, order);
}
std::string PeerRanks::run(const PeerPlan& plan, const std::vector<PeerSumParams>& params,
                           Order order) {
  return run_parts(plan, kernels().at(plan.index).sum, params, order);
}
std::string PeerRanks::run(const PeerPlan& plan, const std::vector<PeerStatisticsParams>& params,
                           Order order) {
  return run_parts(plan, kernels().at(plan.index).statistics, params, order);
}
std::string PeerRanks::run(const PeerPlan& plan, const std::vector<PeerShardedParams>& params,
                           Order order) {
  return run_parts(plan, kernels().at(plan.index).sharded, params, order);
}

}  // namespace simt
