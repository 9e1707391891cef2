#include "simt/peer_run.h"

#include <algorithm>

#include "cuda/families.h"
#include "cuda/kernels.h"
#include "cuda/peer/launch_params.h"

namespace simt {
namespace {

using namespace fastnorm;
using namespace fastnorm::cuda;

// The architecture number that peer_kernels.cpp is compiled with: no GPU's.
constexpr int kSimtNumber = 0;

template <class Params>
auto kernel_of(const PeerPlan& plan) {
  static const std::vector<const void*> all = all_kernels<PeerFamily, kSimtNumber>();
  const void* const address = all[static_cast<size_t>(plan.index)];
  return reinterpret_cast<void (*)(Params)>(reinterpret_cast<uintptr_t>(address));
}

bool is_sum(PeerForm form) { return form == PeerForm::kSum || form == PeerForm::kSumTwoShot; }

const PeerExchange& exchange_of(const PeerShardedParams& p) { return p.statistics.peer; }
const PeerExchange& exchange_of(const auto& p) { return p.peer; }

bool triggers(const PeerNormParams& p) { return (p.norm.bits & kTrigger) != 0; }
bool triggers(const PeerShardedParams& p) { return (p.bits & kTrigger) != 0; }
bool triggers(const PeerSumParams&) { return false; }
bool triggers(const PeerStatisticsParams&) { return false; }

// `bytes`: of a rank's buffer.
template <class Params>
std::string run_parts(const PeerPlan& plan, bool takes, const std::vector<Params>& params,
                      uint64_t bytes, Order order) {
  if (!takes) fault("a plan of another kind of kernel");
  const auto kernel = kernel_of<Params>(plan);
  const PeerGrid grid = peer_grid(plan);
  std::vector<Part> parts;
  for (const Params& p : params) {
    const auto cluster = static_cast<unsigned>(plan.entry->variant.blocks);
    const Grid own = {grid.blocks, 1, grid.threads, cluster, 0, order, true, triggers(p), {}};
    const PeerExchange& exchange = exchange_of(p);
    const auto buffer = reinterpret_cast<uintptr_t>(exchange.buffer[exchange.rank]);
    parts.push_back({own, [=] { kernel(p); }, buffer, buffer + bytes});
  }
  const std::string complaint = launch_together(parts);
  return complaint.empty() ? "" : std::string(plan.entry->name) + ": " + complaint;
}

}  // namespace

PeerRanks::PeerRanks(const PeerDesc& desc) : bytes_(peer_layout(desc).bytes()) {
  void* buffers[kMaxRanks] = {};
  for (int32_t r = 0; r < desc.ranks; ++r) {
    ranks_.push_back(std::make_unique<Rank>());
    ranks_.back()->memory.resize(bytes_ + 256);
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
  return run_parts(plan, plan.entry->variant.is_fused(), params, bytes_, order);
}
std::string PeerRanks::run(const PeerPlan& plan, const std::vector<PeerSumParams>& params,
                           Order order) {
  return run_parts(plan, is_sum(plan.entry->variant.form), params, bytes_, order);
}
std::string PeerRanks::run(const PeerPlan& plan, const std::vector<PeerStatisticsParams>& params,
                           Order order) {
  return run_parts(plan, plan.entry->variant.form == PeerForm::kStatistics, params, bytes_, order);
}
std::string PeerRanks::run(const PeerPlan& plan, const std::vector<PeerShardedParams>& params,
                           Order order) {
  return run_parts(plan, plan.entry->variant.form == PeerForm::kSharded, params, bytes_, order);
}

}  // namespace simt
