#include "cuda/peer/launch_params.h"

#include "core/common/reciprocal.h"
#include "cuda/norm/launch_params.h"
#include "cuda/norm_heads/launch_params.h"

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

PeerShardedPart sharded_part(const NormHeadsDesc& d, const NormHeadsPart& part, int64_t columns) {
  const auto pointer = [](const std::byte* data) { return reinterpret_cast<const char*>(data); };
  const auto type = [&](const WeightTensor& c) {
    return c ? operand_type(c.dtype, d.dtype) : OperandType::kAbsent;
  };
  const NormDesc& norm = part.norm;
  const HeadsTensor y = heads_tensor(norm.y, d, part);
  const int64_t elements = 16 / dtype_bytes(d.dtype), of_head = norm.n / elements;
  PeerShardedPart p = {};
  p.x = pointer(norm.x.data), p.x_token = part.token_stride, p.x_head = part.head_stride;
  p.y = y.data, p.y_token = y.token_stride, p.y_head = y.head_stride;
  p.weight = pointer(norm.weight.data), p.weight_head = norm.weight.head_stride_bytes;
  p.bias = pointer(norm.bias.data), p.bias_head = norm.bias.head_stride_bytes;
  p.by_head = of_head == 1 ? Divisor{1, 0, 0} : make_divisor(static_cast<uint32_t>(of_head));
  p.vectors = static_cast<int32_t>(columns / elements);
  p.inverse_count = reciprocal_of(columns);
  p.weight_type = type(norm.weight), p.bias_type = type(norm.bias);
  return p;
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
    exchange.message[c] = static_cast<uint32_t>(layout.message_words[c] * 4);
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

PeerShardedParams make_peer_sharded_params(const PeerExchange& exchange,
                                           const PeerShardedNorm& call) {
  const NormHeadsDesc& d = *call.apply;
  PeerStatistics statistics = *call.statistics;
  statistics.plan = call.plan;
  for (int i = 0; i < 2; ++i)
    statistics.sums[i] = statistics.mean[i] = statistics.rstd[i] = nullptr;
  PeerShardedParams params = {};
  params.statistics = make_peer_statistics_params(exchange, statistics);
  for (int i = 0; i < d.count; ++i)
    params.part[i] = sharded_part(d, d.parts[i], statistics.columns[i]);
  params.weight_offset = d.parts[0].norm.weight_offset;
  if (rounds_normalized(d.parts[0].norm.rounding)) params.bits |= kRoundNormalized;
  if ((call.flags & FASTNORM_NORM_PDL_CONSTANT_WEIGHTS) != 0) params.bits |= kWaitAfterWeights;
  if ((call.flags & FASTNORM_NORM_PDL_TRIGGER) != 0) params.bits |= kTrigger;
  return params;
}

}  // namespace fastnorm::cuda
