// Peers and their two families at the ABI. On a CPU a call is an exchange and then the norm's own
// kernel.
#include "fastnorm/peer.h"

#include <bit>
#include <cinttypes>
#include <cstring>

#include "api/api.h"
#include "core/norm_batch.h"
#include "core/norm_check.h"
#include "core/norm_heads_check.h"
#include "core/norm_heads_plan.h"
#include "core/pdl.h"
#include "core/peer_check.h"
#include "core/peer_layout.h"
#include "core/peer_norm_fields.h"

struct fastnorm_peer {
  fastnorm_context* context;
  std::unique_ptr<fastnorm::PeerLink> link;
};

namespace fastnorm {
namespace {

CheckedDevice device_of(const fastnorm_context& context) {
  const DeviceFacts& facts = context.device->facts;
  return {facts.device_type, facts.device_id};
}

fastnorm_status create(fastnorm_context* context, const fastnorm_peer_options* options,
                       bool has_buffers, void* const* buffers, int32_t count, fastnorm_peer** peer,
                       Error& error) {
  FASTNORM_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "peer is NULL; required: a pointer to receive the peer");
  *peer = nullptr;
  FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "context is NULL; required: a context");
  PeerDesc desc;
  FASTNORM_TRY(check_peer_options(options, context->device->facts.device_type, &desc, error));
  if (has_buffers) FASTNORM_TRY(check_peer_buffers(desc, buffers, count, error));
  auto made = std::make_unique<fastnorm_peer>();
  made->context = context;
  FASTNORM_TRY(
      context->device->create_peer(desc, has_buffers ? buffers : nullptr, &made->link, error));
  *peer = made.release();
  return FASTNORM_OK;
}

fastnorm_status import(fastnorm_peer* peer, const void* blobs, size_t bytes, Error& error) {
  FASTNORM_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT, "peer is NULL; required: a peer");
  const PeerDesc& desc = peer->link->desc;
  const size_t needed = static_cast<size_t>(desc.ranks) * FASTNORM_PEER_BLOB_BYTES;
  FASTNORM_REQUIRE(blobs != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "blobs is NULL; required: %zu bytes of all ranks", needed);
  FASTNORM_REQUIRE(bytes == needed, FASTNORM_ERROR_ARGUMENT,
                   "bytes is %zu; required: %zu, %d blobs of FASTNORM_PEER_BLOB_BYTES (%d)", bytes,
                   needed, desc.ranks, FASTNORM_PEER_BLOB_BYTES);
  PeerBlob all[kMaxRanks];
  std::memcpy(all, blobs, needed);
  for (int32_t r = 0; r < desc.ranks; ++r) {
    FASTNORM_TRY(check_peer_blob(all[r], r, desc, peer->context->device->facts.device_type, error));
  }
  return peer->link->connect(all, error);
}

// What every call asks first.
fastnorm_status check_peer(const fastnorm_context* context, const fastnorm_peer* peer,
                           Error& error) {
  FASTNORM_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT, "peer is NULL; required: a peer");
  FASTNORM_REQUIRE(peer->context == context, FASTNORM_ERROR_ARGUMENT,
                   "peer is of the context %p and context is %p; required: the peer's own context",
                   static_cast<const void*>(peer->context), static_cast<const void*>(context));
  return FASTNORM_OK;
}

// A number of options that all ranks must share.
class Options {
 public:
  void add(uint32_t word) { value_ = (value_ ^ word) * 0x01000193u + 0x9e3779b9u; }
  void add(float value) { add(std::bit_cast<uint32_t>(value)); }
  uint32_t value() const { return value_; }

 private:
  uint32_t value_ = 0x811c9dc5u;
};

// A checked all-reduce and norm. Where the sum is rounded, its rows are x of the norm. Where it is
// exact, they are f32 with the residual added, and the norm's residual: x is then a row of -0,
// which changes nothing that is added to it.
struct Allreduce {
  fastnorm_peer_allreduce_norm_args local;
  const fastnorm_peer_allreduce_norm_args* args;
  PeerLink* link;
  fastnorm_norm_args norm;
  NormBatch<1> batch;  // of the norm as if x were the sum; rows have the order of x's shape
  bool exact;
  bool keeps_sum;  // residual_out is needed for its dtype alone
  Dtype kept;      // that dtype
  uint64_t totals_bytes, row_bytes, workspace_bytes;
  PeerPlan plan;  // GPUs only

  const NormDesc& desc() const { return batch.desc.at[0]; }
};

NormPlanner planner_of(const fastnorm_context& context) {
  return {context.device->facts, *context.norm_index, context.norm_tuning()};
}

fastnorm_status check(fastnorm_context* context, const fastnorm_peer_allreduce_norm_args* args,
                      Allreduce* call, Error& error) {
  FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "context is NULL; required: a context");
  FASTNORM_TRY(
      accept_struct(args, kFirstPeerAllreduceNormArgs, "args", &call->local, &call->args, error));
  const fastnorm_peer_allreduce_norm_args& a = *call->args;
  FASTNORM_TRY(check_peer(context, a.peer, error));
  call->link = a.peer->link.get();
  const fastnorm_norm_args* norm = nullptr;
  FASTNORM_TRY(accept_struct(a.norm, kFirstNormArgs, "norm", &call->norm, &norm, error));
  if (norm != &call->norm) call->norm = *norm;
  if (a.parallel_user != nullptr) call->norm.parallel_user = a.parallel_user;
  const fastnorm_norm_args& n = call->norm;
  error.prefix = "norm.";
  FASTNORM_TRY(check_peer_flags(n.flags, error));
  FASTNORM_TRY(check_peer_norm_fields(n, error));
  NormPlanner planner = planner_of(*context);
  planner.keeps_order = true;
  FASTNORM_TRY(plan_one(planner, &n, &call->batch, error));
  error.prefix = "";
  call->batch.desc.at[0].flags = with_pdl_of_peers(n.flags, context->device->facts.pdl);
  const NormDesc& d = call->desc();
  FASTNORM_TRY(check_peer_allreduce_norm(a, d, call->link->desc, error));
  call->exact = number(a.sum_rounding) == FASTNORM_PEER_SUM_EXACT;
  call->keeps_sum = call->exact && n.residual != nullptr && n.residual_out == nullptr &&
                    number(n.residual_rounding) != FASTNORM_RESIDUAL_EXACT;
  call->kept = call->keeps_sum ? dtype_from(n.residual->dtype) : Dtype::kF32;
  const auto elements = static_cast<uint64_t>(d.rows) * static_cast<uint64_t>(d.n);
  const auto bytes = static_cast<uint64_t>(dtype_bytes(d.dtype));
  call->totals_bytes = aligned(elements * (call->exact ? 4 : bytes));
  call->row_bytes = call->exact ? aligned(static_cast<uint64_t>(d.n) * bytes) : 0;
  const uint64_t kept_bytes =
      call->keeps_sum ? aligned(elements * static_cast<uint64_t>(dtype_bytes(call->kept))) : 0;
  if (const auto table = context->device->peer_table(); !table.empty() && d.rows != 0) {
    const NormKey& key = call->batch.planned().front().plan->entry->key;
    call->plan = plan_peer_sum(call->link->desc, d, key, call->exact, table);
  }
  const bool needs_room = d.rows != 0 && !call->plan.is_fused();
  call->workspace_bytes = needs_room ? call->totals_bytes + call->row_bytes + kept_bytes : 0;
  return FASTNORM_OK;
}

uint32_t options_of(const Allreduce& call) {
  const NormDesc& d = call.desc();
  Options options;
  for (const int32_t n :
       {static_cast<int32_t>(d.kind), static_cast<int32_t>(d.rounding),
        static_cast<int32_t>(d.residual_rounding), static_cast<int32_t>(d.quant.scheme)}) {
    options.add(static_cast<uint32_t>(n));
  }
  options.add(d.eps);
  options.add(d.weight_offset);
  options.add(call.norm.residual != nullptr ? 1u : 0u);
  return options.value();
}

// Plans the norm of a call that is not fused. It takes the sum from the workspace, which begins
// with it.
fastnorm_status plan_behind_sum(const fastnorm_context& context, const Allreduce& call,
                                std::byte* workspace, NormBatch<1>* batch, Error& error) {
  const fastnorm_norm_args& a = call.norm;
  std::byte* const row = workspace + call.totals_bytes;
  fastnorm_norm_args norm = call.norm;
  fastnorm_tensor sum = *a.x, zero = *a.x, kept = *a.x;
  int64_t broadcast[PeerRows::kMaxDims + 1] = {};
  broadcast[a.x->ndim - 1] = 1;
  sum.data = workspace;
  sum.strides = nullptr;
  sum.byte_offset = 0;
  norm.x = &sum;
  if (call.exact) {
    sum.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    zero.data = row;
    zero.strides = broadcast;
    zero.byte_offset = 0;
    norm.x = &zero;
    norm.residual = &sum;
    if (a.residual == nullptr) norm.residual_rounding = FASTNORM_RESIDUAL_EXACT;
    if (call.keeps_sum) {
      kept.data = row + call.row_bytes;
      kept.strides = nullptr;
      kept.byte_offset = 0;
      kept.dtype = a.residual->dtype;
      norm.residual_out = &kept;
    }
  }
  // The kernel of the norm may start while the exchange runs: it waits for the exchange's end. It
  // waits for no other rank, so the next kernel may start early by default.
  if (call.plan.entry != nullptr) {
    norm.flags = kNoPdl | kPdlWait | (with_pdl(a.flags, context.device->facts.pdl) & kPdlTrigger);
  }
  error.prefix = "with workspace for the sum: norm.";
  FASTNORM_TRY(plan_one(planner_of(context), &norm, batch, error));
  error.prefix = "";
  return FASTNORM_OK;
}

fastnorm_status describe(const fastnorm_context& context, const Allreduce& call,
                         fastnorm_info* info, Error& error) {
  FASTNORM_TRY(check_info(info, error));
  std::span<const NormCall> planned = call.batch.planned();
  const bool fused = call.plan.is_fused();
  NormBatch<1> batch;
  if (!planned.empty() && !fused) {
    FASTNORM_TRY(plan_behind_sum(context, call, pretended_workspace(), &batch, error));
    planned = batch.planned();
  }
  fastnorm_info result = batch_info(*context.device, planned, call.workspace_bytes);
  if (!planned.empty()) {  // bytes of the caller's tensors
    const NormPlan& plan = *call.batch.planned().front().plan;
    result.bytes_read = plan.bytes_read;
    result.bytes_written = plan.bytes_written;
  }
  if (fused) {
    const PeerVariant& v = call.plan.entry->variant;
    result.kernel = call.plan.entry->name;
    result.kind = result.choice = result.variant = "";
    result.launches = 0;
    result.blocks = 0;
    result.threads_per_row = v.threads;
    result.vectors_per_thread = v.vectors;
    result.rows_per_block = 1;
    result.blocks_per_row = 1;
  }
  if (call.plan.entry != nullptr) {
    ++result.launches;
    result.blocks += peer_grid(call.plan).blocks;
  }
  give_struct(result, info);
  return FASTNORM_OK;
}

// Nothing that the exchange reads or the norm adds may lie in the workspace, which the exchange
// fills.
fastnorm_status check_apart(const char* name, const PeerRows& rows, int64_t columns,
                            const Workspace& workspace, uint64_t workspace_bytes, Error& error) {
  const auto begin = reinterpret_cast<uintptr_t>(workspace.data);
  const PeerSpan span = peer_span(rows, columns * dtype_bytes(rows.dtype));
  FASTNORM_REQUIRE(span.end <= begin || begin + workspace_bytes <= span.begin,
                   FASTNORM_ERROR_LAYOUT,
                   "workspace is %p and %s lies from 0x%" PRIxPTR " to 0x%" PRIxPTR
                   "; required: no byte in common",
                   workspace.data, name, span.begin, span.end);
  return FASTNORM_OK;
}

fastnorm_status run(fastnorm_context& context, const Allreduce& call, const Workspace& workspace,
                    Error& error) {
  FASTNORM_TRY(check_workspace(context, workspace, call.workspace_bytes, error));
  FASTNORM_TRY(call.link->ready(error));
  const NormDesc& d = call.desc();
  if (d.rows == 0) return FASTNORM_OK;
  if (call.plan.is_fused()) {
    const NormPlan* const plan = call.batch.planned().front().plan;
    return call.link->norm({&d, plan, &call.plan, options_of(call)}, workspace.stream, error);
  }
  const fastnorm_norm_args& a = call.norm;
  auto* const totals = static_cast<std::byte*>(workspace.data);
  NormBatch<1> batch;
  FASTNORM_TRY(plan_behind_sum(context, call, totals, &batch, error));
  const PeerSum exchange{d.rows,
                         d.n,
                         peer_rows(*a.x),
                         call.exact,
                         a.residual != nullptr ? peer_rows(*a.residual) : PeerRows{},
                         totals,
                         call.exact ? totals + call.totals_bytes : nullptr,
                         options_of(call),
                         &d,
                         &call.plan};
  FASTNORM_TRY(check_apart("norm.x", exchange.x, d.n, workspace, call.workspace_bytes, error));
  if (a.residual != nullptr)
    FASTNORM_TRY(check_apart("norm.residual", exchange.residual, d.n, workspace,
                             call.workspace_bytes, error));
  FASTNORM_TRY(call.link->sum(exchange, workspace.stream, error));
  return context.device->run_norm(batch.planned(), nullptr, workspace.stream, error);
}

template <typename Use>
fastnorm_status with_allreduce(fastnorm_context* context,
                               const fastnorm_peer_allreduce_norm_args* args, Use use) {
  return guarded([&](Error& error) {
    Allreduce call;
    FASTNORM_TRY(check(context, args, &call, error));
    return use(call, error);
  });
}

struct HeadsCall {
  [[gnu::noinline]] HeadsCall() {}  // much code, and a call has up to four of them

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
    at += aligned(static_cast<uint64_t>(tokens * words) * 4);
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
    return plan_norm_heads(heads->desc, device.facts, device.norm_heads_table(), &heads->plan,
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
  FASTNORM_TRY(
      accept_struct(args, kFirstPeerShardedNormArgs, "args", &call->local, &call->args, error));
  FASTNORM_TRY(check_peer(context, call->args->peer, error));
  call->link = call->args->peer->link.get();
  FASTNORM_TRY(check_peer_sharded_norm(*call->args, device_of(*context), call->link->desc,
                                       &call->shape, error));
  // Of a part: sums, rstd, LAYER: twice the sums, and means.
  const uint64_t token_bytes = static_cast<uint64_t>(call->shape.tokens) * 4;
  const uint64_t part_bytes = call->layer() ? aligned(2 * token_bytes) + 2 * aligned(token_bytes)
                                            : 2 * aligned(token_bytes);
  call->workspace_bytes = part_bytes * static_cast<uint64_t>(call->shape.count);
  const auto table = context->device->peer_table();
  if (table.empty()) return FASTNORM_OK;
  call->plan = plan_peer_statistics(call->link->desc, call->shape.tokens, table);
  if (call->shape.tokens == 0 || call->shape.tokens > kMostShardedTokens) return FASTNORM_OK;
  FASTNORM_TRY(plan(*context, *call, pretended_workspace(), &call->planned, error));
  const PeerPlan one = plan_peer_sharded(call->link->desc, call->planned.apply.desc, table);
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
  FASTNORM_TRY(device.run_norm_heads(planned.sums.desc, planned.sums.plan, stream, error));
  FASTNORM_TRY(call.link->statistics(planned.exchange, stream, error));
  return device.run_norm_heads(planned.apply.desc, planned.apply.plan, stream, error);
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

fastnorm_status fastnorm_peer_buffer_bytes(fastnorm_context* context,
                                           const fastnorm_peer_options* options, uint64_t* bytes) {
  return fastnorm::guarded([&](Error& error) {
    FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "context is NULL; required: a context");
    FASTNORM_REQUIRE(bytes != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "bytes is NULL; required: a pointer to receive the number");
    fastnorm::PeerDesc desc;
    FASTNORM_TRY(
        fastnorm::check_peer_options(options, context->device->facts.device_type, &desc, error));
    FASTNORM_TRY(context->device->check_peers(error));
    *bytes = fastnorm::peer_layout(desc).bytes();
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_peer_create(fastnorm_context* context,
                                     const fastnorm_peer_options* options, fastnorm_peer** peer) {
  return fastnorm::guarded([&](Error& error) {
    return fastnorm::create(context, options, false, nullptr, 0, peer, error);
  });
}

fastnorm_status fastnorm_peer_create_from_pointers(fastnorm_context* context,
                                                   const fastnorm_peer_options* options,
                                                   void* const* buffers, int32_t count,
                                                   fastnorm_peer** peer) {
  return fastnorm::guarded([&](Error& error) {
    return fastnorm::create(context, options, true, buffers, count, peer, error);
  });
}

fastnorm_status fastnorm_peer_export(fastnorm_peer* peer, void* blob, size_t bytes) {
  return fastnorm::guarded([&](Error& error) {
    FASTNORM_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT, "peer is NULL; required: a peer");
    FASTNORM_REQUIRE(blob != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "blob is NULL; required: room for %d bytes", FASTNORM_PEER_BLOB_BYTES);
    FASTNORM_REQUIRE(bytes >= FASTNORM_PEER_BLOB_BYTES, FASTNORM_ERROR_ARGUMENT,
                     "bytes is %zu; required: at least FASTNORM_PEER_BLOB_BYTES (%d)", bytes,
                     FASTNORM_PEER_BLOB_BYTES);
    fastnorm::PeerBlob made;
    FASTNORM_TRY(peer->link->export_blob(&made, error));
    std::memcpy(blob, &made, sizeof made);
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_peer_import(fastnorm_peer* peer, const void* blobs, size_t bytes) {
  return fastnorm::guarded(
      [&](Error& error) { return fastnorm::import(peer, blobs, bytes, error); });
}

fastnorm_status fastnorm_peer_status(const fastnorm_peer* peer, fastnorm_peer_state* state) {
  return fastnorm::guarded([&](Error& error) {
    FASTNORM_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT, "peer is NULL; required: a peer");
    FASTNORM_REQUIRE(state != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "state is NULL; required: a fastnorm_peer_state");
    FASTNORM_REQUIRE(state->struct_size >= fastnorm::kFirstPeerState, FASTNORM_ERROR_ARGUMENT,
                     "state.struct_size is %zu; required: at least %zu", state->struct_size,
                     fastnorm::kFirstPeerState);
    fastnorm_peer_state result = {};
    FASTNORM_TRY(peer->link->state(&result, error));
    fastnorm::give_struct(result, state);
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_peer_reset(fastnorm_peer* peer) {
  return fastnorm::guarded([&](Error& error) {
    FASTNORM_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT, "peer is NULL; required: a peer");
    return peer->link->reset(error);
  });
}

void fastnorm_peer_destroy(fastnorm_peer* peer) { delete peer; }

fastnorm_status fastnorm_peer_allreduce_norm_query(fastnorm_context* context,
                                                   const fastnorm_peer_allreduce_norm_args* args,
                                                   fastnorm_info* info) {
  return fastnorm::with_allreduce(context, args,
                                  [=](const fastnorm::Allreduce& call, Error& error) {
                                    return fastnorm::describe(*context, call, info, error);
                                  });
}

fastnorm_status fastnorm_peer_allreduce_norm_prepare(
    fastnorm_context* context, const fastnorm_peer_allreduce_norm_args* args) {
  return fastnorm::with_allreduce(
      context, args, [=](const fastnorm::Allreduce& call, Error& error) -> fastnorm_status {
        // A peer has loaded its own kernels.
        if (call.batch.planned().empty() || call.plan.is_fused()) return FASTNORM_OK;
        fastnorm::NormBatch<1> batch;
        FASTNORM_TRY(fastnorm::plan_behind_sum(*context, call, fastnorm::pretended_workspace(),
                                               &batch, error));
        return context->device->prepare_norm(batch.planned(), error);
      });
}

fastnorm_status fastnorm_peer_allreduce_norm(fastnorm_context* context,
                                             const fastnorm_peer_allreduce_norm_args* args,
                                             void* workspace, size_t workspace_bytes,
                                             void* stream) {
  return fastnorm::with_allreduce(
      context, args, [=](const fastnorm::Allreduce& call, Error& error) {
        return fastnorm::run(*context, call, {workspace, workspace_bytes, stream}, error);
      });
}

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
        const auto prepare = [&](const fastnorm::HeadsCall& heads) {
          return context->device->prepare_norm_heads(heads.desc, heads.plan, error);
        };
        FASTNORM_TRY(prepare(planned.sums));
        return prepare(planned.apply);
      });
}

fastnorm_status fastnorm_peer_sharded_norm(fastnorm_context* context,
                                           const fastnorm_peer_sharded_norm_args* args,
                                           void* workspace, size_t workspace_bytes, void* stream) {
  return fastnorm::with_sharded(context, args, [=](const fastnorm::Sharded& call, Error& error) {
    return fastnorm::run(*context, call, {workspace, workspace_bytes, stream}, error);
  });
}
