// peer_sharded_norm at the ABI: check, plan, run. What is not one kernel is two calls of
// norm_heads, and an exchange between them.
#include "api/peer.h"
#include "core/common/field_rules.h"
#include "core/common/pdl.h"
#include "core/norm_heads/check.h"
#include "core/norm_heads/plan.h"
#include "core/peer/check.h"
#include "core/peer/norm_fields.h"

namespace fastnorm {
namespace {

CheckedDevice device_of(const fastnorm_context& context) {
  const DeviceFacts& facts = context.device->facts;
  return {facts.device_type, facts.device_id};
}

struct HeadsCall {
  [[gnu::noinline]] HeadsCall() {}  // much code, and a call has up to four of them

  NormHeadsCall call() const { return {&desc, &plan}; }

  NormHeadsDesc desc;
  NormHeadsPlan plan;
};

// The two calls of norm_heads, planned, and the exchange between them.
struct ShardedPlan {
  HeadsCall sums, apply;
  PeerStatistics exchange;
};

// A checked sharded norm: two calls of norm_heads, the sums before the exchange and y behind it; or
// one kernel for all.
struct Sharded {
  fastnorm_peer_sharded_norm_args local;
  const fastnorm_peer_sharded_norm_args* args;
  PeerLink* link;
  PeerSharded shape;
  uint64_t workspace_bytes;
  PeerPlan plan;        // GPUs only
  ShardedPlan planned;  // of one kernel

  bool layer() const { return number(args->kind) == FASTNORM_NORM_LAYER; }
};

// A tensor with its own shape and strides.
struct Owned {
  fastnorm_tensor tensor;
  int64_t shape[3], strides[3];
};

// [tokens, heads, d] of a part's tensor.
void as_heads(const fastnorm_tensor& t, Owned* out) {
  out->tensor = t;
  out->tensor.ndim = 3;
  const int32_t last = t.ndim - 1;
  out->shape[0] = t.shape[0];
  out->shape[1] = t.ndim == 3 ? t.shape[1] : 1;
  out->shape[2] = t.shape[last];
  out->tensor.shape = out->shape;
  if (t.strides == nullptr) return;
  out->strides[0] = t.strides[0];
  out->strides[1] = t.ndim == 3 ? t.strides[1] : 0;
  out->strides[2] = t.strides[last];
  out->tensor.strides = out->strides;
}

// f32 [tokens] or [tokens, last] in the workspace.
void as_statistic(const fastnorm_tensor& like, void* data, int64_t tokens, int64_t last,
                  Owned* out) {
  out->tensor = like;
  out->tensor.data = data;
  out->tensor.byte_offset = 0;
  out->tensor.strides = nullptr;
  out->tensor.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  out->tensor.ndim = last == 1 ? 1 : 2;
  out->shape[0] = tokens;
  out->shape[1] = last;
  out->tensor.shape = out->shape;
}

fastnorm_status plan(const fastnorm_context& context, const Sharded& call, void* workspace,
                     ShardedPlan* planned, Error& error) {
  const fastnorm_peer_sharded_norm_args& a = *call.args;
  const struct {
    const fastnorm_tensor *x, *weight, *bias, *y;
  } given[2] = {{a.x, a.weight, a.bias, a.y}, {a.x2, a.weight2, a.bias2, a.y2}};
  const int64_t tokens = call.shape.tokens;
  const int64_t sum_words = call.layer() ? 2 : 1;
  uintptr_t at = reinterpret_cast<uintptr_t>(workspace);
  const auto take = [&](int64_t words) {
    auto* const data = reinterpret_cast<float*>(at);
    at += workspace_aligned(static_cast<uint64_t>(tokens * words) * 4);
    return data;
  };
  PeerStatistics& e = planned->exchange;
  e = {};
  e.tokens = tokens;
  e.parts = call.shape.count;
  e.layer = call.layer();
  e.eps = a.eps;
  Options options;
  options.add(a.eps);
  options.add(static_cast<uint32_t>(number(a.rounding)));
  options.add(a.weight_offset);
  e.options = options.value();
  e.plan = &call.plan;
  fastnorm_norm_heads_args shared = {};
  shared.struct_size = sizeof shared;
  shared.parallel_user = a.parallel_user;
  e.pdl = kPdlWait;  // behind the kernel of the sums
  fastnorm_norm_heads_part sums[2], apply[2];
  const fastnorm_norm_heads_part* sums_of[2] = {&sums[0], &sums[1]};
  const fastnorm_norm_heads_part* apply_of[2] = {&apply[0], &apply[1]};
  Owned x[2], y[2], sum[2], mean[2], rstd[2];
  for (int32_t p = 0; p < e.parts; ++p) {
    e.columns[p] = call.shape.parts[p].heads * call.shape.parts[p].columns;
    float* const part_sums = take(sum_words);
    e.sums[p] = part_sums;
    e.rstd[p] = take(1);
    if (e.layer) e.mean[p] = take(1);
    as_heads(*given[p].x, &x[p]);
    as_heads(*given[p].y, &y[p]);
    as_statistic(*given[p].x, part_sums, tokens, sum_words, &sum[p]);
    as_statistic(*given[p].x, e.rstd[p], tokens, 1, &rstd[p]);
    if (e.layer) as_statistic(*given[p].x, e.mean[p], tokens, 1, &mean[p]);
    sums[p] = {};
    sums[p].struct_size = sizeof sums[p];
    sums[p].flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ACROSS_HEADS;
    sums[p].kind = a.kind;
    sums[p].x = &x[p].tensor;
    apply[p] = sums[p];
    sums[p].sumsq = &sum[p].tensor;
    apply[p].rounding = a.rounding;
    apply[p].weight_offset = a.weight_offset;
    apply[p].weight = given[p].weight;
    apply[p].bias = given[p].bias;
    apply[p].y = &y[p].tensor;
    apply[p].rstd_in = &rstd[p].tensor;
    if (e.layer) apply[p].mean_in = &mean[p].tensor;
  }
  const Device& device = *context.device;
  const auto plan_heads = [&](const fastnorm_norm_heads_part* const* parts, HeadsCall* heads) {
    FASTNORM_TRY(
        check_norm_heads(&shared, parts, e.parts, device_of(context), &heads->desc, error));
    heads->desc.pdl = with_pdl(a.flags, device.facts.pdl) & (kPdlWait | kPdlTrigger);
    return plan_norm_heads(heads->desc, device.facts, device.table<NormHeadsEntry>(), &heads->plan,
                           error);
  };
  FASTNORM_TRY(plan_heads(sums_of, &planned->sums));
  FASTNORM_TRY(plan_heads(apply_of, &planned->apply));
  // The kernels of the call follow each other early.
  planned->sums.desc.pdl |= kPdlTrigger;
  planned->apply.desc.pdl |= kPdlWait;
  return FASTNORM_OK;
}

fastnorm_status check(fastnorm_context* context, const fastnorm_peer_sharded_norm_args* args,
                      Sharded* call, Error& error) {
  FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "context is NULL; required: a context");
  FASTNORM_TRY(accept_call(args, "args", &call->local, &call->args, error));
  FASTNORM_TRY(check_peer(context, call->args->peer, error));
  call->link = call->args->peer->link.get();
  FASTNORM_TRY(check_peer_sharded_norm(*call->args, device_of(*context), call->link->desc,
                                       &call->shape, error));
  // Each part has sums and rstd; LAYER has twice the sums, and means.
  const uint64_t token_bytes = static_cast<uint64_t>(call->shape.tokens) * 4;
  const uint64_t part_bytes =
      call->layer() ? workspace_aligned(2 * token_bytes) + 2 * workspace_aligned(token_bytes)
                    : 2 * workspace_aligned(token_bytes);
  call->workspace_bytes = part_bytes * static_cast<uint64_t>(call->shape.count);
  const auto table = context->device->table<PeerEntry>();
  if (table.empty()) return FASTNORM_OK;
  const PeerDesc peer = planned_desc(*call->link);
  call->plan = plan_peer_statistics(peer, call->shape.tokens, table);
  if (call->shape.tokens == 0 || call->shape.tokens > kMostShardedTokens) return FASTNORM_OK;
  FASTNORM_TRY(plan(*context, *call, pretended_workspace(), &call->planned, error));
  const PeerPlan one = plan_peer_sharded(peer, call->planned.apply.desc, table);
  if (one.entry == nullptr) return FASTNORM_OK;
  call->plan = one;
  call->workspace_bytes = 0;
  return FASTNORM_OK;
}

fastnorm_status describe(const fastnorm_context& context, const Sharded& call, fastnorm_info* info,
                         Error& error) {
  FASTNORM_TRY(check_info(info, error));
  ShardedPlan planned;
  FASTNORM_TRY(plan(context, call, pretended_workspace(), &planned, error));
  fastnorm_info result = {};
  result.kind = result.choice = result.variant = "";
  const NormHeadsPlan& apply = planned.apply.plan;
  result.kernel = apply.kernel;
  result.bytes_read = apply.bytes_read;
  result.bytes_written = apply.bytes_written;
  result.workspace_bytes = call.workspace_bytes;
  result.launches = apply.launches;
  result.blocks = apply.blocks;
  if (call.plan.is_sharded()) {
    const PeerVariant& v = call.plan.entry->variant;
    result.kernel = call.plan.entry->name;
    // Statistics stay in the kernel.
    result.bytes_read -=
        static_cast<uint64_t>(call.shape.tokens * call.shape.count) * (call.layer() ? 8 : 4);
    result.launches = 1;
    result.blocks = peer_grid(call.plan).blocks;
    result.threads_per_row = v.threads;
    result.vectors_per_thread = v.vectors;
    result.rows_per_block = 1;
    result.blocks_per_row = 1;
    result.vector_bytes = context.device->facts.vector_bytes;
    give_struct(result, info);
    return FASTNORM_OK;
  }
  if (call.plan.entry != nullptr && apply.launches != 0) {
    result.launches += planned.sums.plan.launches + 1;
    result.blocks += planned.sums.plan.blocks + peer_grid(call.plan).blocks;
  }
  if (apply.launches != 0) {
    result.threads_per_row = 1;
    result.rows_per_block = static_cast<int32_t>(apply.grain);
    result.blocks_per_row = 1;
    result.vector_bytes = context.device->facts.vector_bytes;
  }
  give_struct(result, info);
  return FASTNORM_OK;
}

fastnorm_status run(fastnorm_context& context, const Sharded& call, const Workspace& workspace,
                    Error& error) {
  FASTNORM_TRY(check_workspace(context, workspace, call.workspace_bytes, error));
  FASTNORM_TRY(call.link->ready(error));
  if (call.shape.tokens == 0) return FASTNORM_OK;
  if (call.plan.is_sharded()) {
    return call.link->sharded(
        {&call.planned.apply.desc, &call.planned.exchange,
         with_pdl_of_peers(call.args->flags, context.device->facts.pdl), &call.plan},
        workspace.stream, error);
  }
  ShardedPlan planned;
  FASTNORM_TRY(plan(context, call, workspace.data, &planned, error));
  Device& device = *context.device;
  void* const stream = workspace.stream;
  FASTNORM_TRY(device.run(planned.sums.call(), nullptr, stream, error));
  FASTNORM_TRY(call.link->statistics(planned.exchange, stream, error));
  return device.run(planned.apply.call(), nullptr, stream, error);
}

template <typename Use>
fastnorm_status with_sharded(fastnorm_context* context, const fastnorm_peer_sharded_norm_args* args,
                             Use use) {
  return guarded([&](Error& error) {
    Sharded call;
    FASTNORM_TRY(check(context, args, &call, error));
    return use(call, error);
  });
}

}  // namespace
}  // namespace fastnorm

using fastnorm::Error;

fastnorm_status fastnorm_peer_sharded_norm_query(fastnorm_context* context,
                                                 const fastnorm_peer_sharded_norm_args* args,
                                                 fastnorm_info* info) {
  return fastnorm::with_sharded(context, args, [=](const fastnorm::Sharded& call, Error& error) {
    return fastnorm::describe(*context, call, info, error);
  });
}

fastnorm_status fastnorm_peer_sharded_norm_prepare(fastnorm_context* context,
                                                   const fastnorm_peer_sharded_norm_args* args) {
  return fastnorm::with_sharded(
      context, args, [=](const fastnorm::Sharded& call, Error& error) -> fastnorm_status {
        fastnorm::ShardedPlan planned;
        FASTNORM_TRY(
            fastnorm::plan(*context, call, fastnorm::pretended_workspace(), &planned, error));
        if (call.plan.entry == nullptr || call.shape.tokens == 0) return FASTNORM_OK;
        if (call.plan.is_sharded()) return FASTNORM_OK;
        FASTNORM_TRY(context->device->prepare(planned.sums.call(), error));
        return context->device->prepare(planned.apply.call(), error);
      });
}

fastnorm_status fastnorm_peer_sharded_norm(fastnorm_context* context,
                                           const fastnorm_peer_sharded_norm_args* args,
                                           void* workspace, size_t workspace_bytes, void* stream) {
  return fastnorm::with_sharded(context, args, [=](const fastnorm::Sharded& call, Error& error) {
    return fastnorm::run(*context, call, {workspace, workspace_bytes, stream}, error);
  });
}
