#include "cuda/peer/launch_params.h"

#include "core/reciprocal.h"
#include "cuda/norm/launch_params.h"

namespace fastnorm::cuda {
namespace {

// Numbers of a kind of call: what they are mixed into differs in all bits.
enum : uint32_t { kRounded = 1, kExact = 2, kStatisticsCall = 3 };

uint32_t mixed(uint32_t a, uint32_t b) {
  const uint64_t product = (uint64_t{a} << 32 | b) * 0x9e3779b97f4a7c15;
  return static_cast<uint32_t>(product >> 32) ^ static_cast<uint32_t>(product);
}

PeerExchange exchange_of(const PeerExchange& shared, int64_t rows, int64_t columns,
                         uint32_t options, const PeerPlan& plan) {
  PeerExchange exchange = shared;
  exchange.rows = static_cast<uint32_t>(rows);
  exchange.columns = static_cast<uint32_t>(columns);
  exchange.options = options;
  exchange.rings = plan.rings;
  return exchange;
}

}  // namespace

PeerExchange make_peer_exchange(const PeerDesc& desc, void* const* buffers, PeerControl* control,
                                uint32_t* report) {
  const PeerLayout layout = peer_layout(desc);
  PeerExchange exchange = {};
  for (int32_t r = 0; r < desc.ranks; ++r) exchange.buffer[r] = static_cast<char*>(buffers[r]);
  exchange.control = control;
  exchange.report = report;
  exchange.wait_ns = static_cast<uint64_t>(desc.wait_ns);
  for (int c = 0; c < kPeerChannels; ++c) {
    exchange.channel[c] = layout.first_word[c] * 4;
    exchange.message[c] = layout.message_words[c] * 4;
  }
  exchange.rank = desc.rank;
  exchange.ranks = desc.ranks;
  exchange.all_rings = desc.rings;
  return exchange;
}

PeerNormParams make_peer_norm_params(const PeerExchange& exchange, const PeerNorm& call) {
  const NormDesc& d = *call.norm;
  PeerNormParams params;
  params.norm = make_params(d, *call.norm_plan);
  params.peer = exchange_of(exchange, d.rows, d.n, mixed(call.options, kRounded), *call.plan);
  return params;
}

PeerSumParams make_peer_sum_params(const PeerExchange& exchange, const PeerSum& call) {
  const NormDesc& d = *call.norm;
  PeerSumParams params = {};
  params.norm = make_input_params(d);
  if (call.residual.data == nullptr) params.norm.residual = {};
  params.peer = exchange_of(exchange, d.rows, d.n,
                            mixed(call.options, call.exact ? kExact : kRounded), *call.plan);
  params.totals = reinterpret_cast<char*>(call.totals);
  params.minus_zeros = reinterpret_cast<char*>(call.minus_zeros);
  params.exact = call.exact ? 1 : 0;
  params.total_align = access_bytes(static_cast<uint64_t>(d.n) *
                                    static_cast<uint64_t>(call.exact ? 4 : dtype_bytes(d.dtype)));
  return params;
}

PeerStatisticsParams make_peer_statistics_params(const PeerExchange& exchange,
                                                 const PeerStatistics& call) {
  PeerStatisticsParams params = {};
  uint32_t options = mixed(call.options, static_cast<uint32_t>(call.words()));
  if (call.parts == 2) options = mixed(options, static_cast<uint32_t>(call.columns[1]));
  params.peer = exchange_of(exchange, call.tokens, call.columns[0], mixed(options, kStatisticsCall),
                            *call.plan);
  for (int part = 0; part < call.parts; ++part) {
    params.sums[part] = call.sums[part];
    params.mean[part] = call.mean[part];
    params.rstd[part] = call.rstd[part];
    params.inverse[part] = reciprocal_of(call.columns[part] * exchange.ranks);
    const auto n = static_cast<double>(call.columns[part]);
    for (int r = 0; r < exchange.ranks; ++r)
      params.share[part][r] = static_cast<float>(n * r / (r + 1));
  }
  for (int r = 0; r < exchange.ranks; ++r) params.next[r] = reciprocal_of(r + 1);
  params.eps = call.eps;
  params.tokens = static_cast<int32_t>(call.tokens);
  params.parts = call.parts;
  params.layer = call.layer ? 1 : 0;
  return params;
}

PeerGrid peer_grid(const PeerPlan& plan) {
  const PeerVariant& v = plan.entry->variant;
  const auto rings = static_cast<unsigned>(plan.rings), threads = static_cast<unsigned>(v.threads);
  if (v.form == PeerForm::kStatistics) return {(rings + threads - 1) / threads, threads};
  return {rings, threads};
}

}  // namespace fastnorm::cuda
