// peer_allreduce_norm at the ABI: check, plan, run. What is not one kernel is an exchange and then
// the norm's own kernel, as on a CPU.
#include <cinttypes>

#include "api/peer.h"
#include "core/common/field_rules.h"
#include "core/common/pdl.h"
#include "core/norm/batch.h"
#include "core/norm/check.h"
#include "core/peer/check.h"
#include "core/peer/norm_fields.h"

namespace fastnorm {
namespace {

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
  FASTNORM_TRY(accept_call(args, "args", &call->local, &call->args, error));
  const fastnorm_peer_allreduce_norm_args& a = *call->args;
  FASTNORM_TRY(check_peer(context, a.peer, error));
  call->link = a.peer->link.get();
  const fastnorm_norm_args* norm = nullptr;
  FASTNORM_TRY(accept_call(a.norm, "norm", &call->norm, &norm, error));
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
  call->totals_bytes = workspace_aligned(elements * (call->exact ? 4 : bytes));
  call->row_bytes = call->exact ? workspace_aligned(static_cast<uint64_t>(d.n) * bytes) : 0;
  const uint64_t kept_bytes =
      call->keeps_sum ? workspace_aligned(elements * static_cast<uint64_t>(dtype_bytes(call->kept)))
                      : 0;
  if (const auto table = context->device->table<PeerEntry>(); !table.empty() && d.rows != 0) {
    const NormKey& key = call->batch.planned().front().plan->entry->key;
    const int32_t cluster_blocks =
        call->link->room().alone ? context->device->facts.max_cluster_blocks : 1;
    call->plan =
        plan_peer_sum(planned_desc(*call->link), d, key, call->exact, table, cluster_blocks);
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
  fastnorm_info result = norm_info(context, planned, call.workspace_bytes);
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
    result.blocks_per_row = v.blocks;
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
  return context.device->run(batch.planned(), nullptr, workspace.stream, error);
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

}  // namespace
}  // namespace fastnorm

using fastnorm::Error;

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
        return context->device->prepare(batch.planned(), error);
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
