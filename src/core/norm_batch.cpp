#include "core/norm_batch.h"

#include "core/norm_check.h"
#include "core/pdl.h"

namespace fastnorm {
namespace {

// Names a part of a fastnorm_norm_many in error texts.
constexpr const char* kPrefix[kMaxCalls] = {"args[0].", "args[1].", "args[2].", "args[3].",
                                            "args[4].", "args[5].", "args[6].", "args[7]."};

// There is no call that can share its launch with the next one.
constexpr int32_t kNone = -1;

// Checks and plans a call. *before is the index of the previous call with rows, or kNone if that
// call shares a launch already. Two neighbours share a launch if one kernel can serve both.
template <int32_t kCalls>
FASTNORM_HOT fastnorm_status add(const NormPlanner& planner, const fastnorm_norm_args* args,
                                 NormBatch<kCalls>* batch, int32_t* before, Error& error) {
  const DeviceFacts& facts = planner.facts;
  const NormIndex& index = planner.index;
  const int32_t at = batch->count;
  NormDesc& desc = batch->desc.at[at];
  NormPlan& plan = batch->plan.at[at];
  FASTNORM_TRY(check_norm(args, {facts.device_type, facts.device_id}, &desc, &batch->touched.at[at],
                          error, planner.keeps_order));
  desc.flags = with_pdl(desc.flags, facts.pdl);
  const bool second = *before != kNone;
  const bool like = second && plan_like(batch->desc.at[*before], batch->plan.at[*before], desc,
                                        facts, &plan, error);
  if (!like) {
    FASTNORM_TRY(make_plan(desc, facts, index.table(), &plan, error, planner.tuning, &index));
  }
  ++batch->count;
  if (plan.entry == nullptr) return FASTNORM_OK;  // no rows
  batch->call[batch->calls++] = {&desc, &plan};
  // Query and key heads have different numbers of rows and still share a launch.
  const bool together =
      like || (second && plan_together(batch->desc.at[*before], desc, facts, index.table(),
                                       &batch->plan.at[*before], &plan));
  *before = together ? kNone : at;
  return FASTNORM_OK;
}

}  // namespace

fastnorm_status plan_one(const NormPlanner& planner, const fastnorm_norm_args* args,
                         NormBatch<1>* batch, Error& error) {
  int32_t before = kNone;
  return add(planner, args, batch, &before, error);
}

fastnorm_status plan_many(const NormPlanner& planner, const fastnorm_norm_args* const* args,
                          int32_t count, NormBatch<kMaxCalls>* batch, Error& error) {
  FASTNORM_REQUIRE(count >= 0 && count <= kMaxCalls, FASTNORM_ERROR_ARGUMENT,
                   "count is %d; required: 0 to %d", count, kMaxCalls);
  FASTNORM_REQUIRE(args != nullptr || count == 0, FASTNORM_ERROR_ARGUMENT,
                   "args is NULL; required: %d pointers", count);
  int32_t before = kNone;
  for (int32_t i = 0; i < count; ++i) {
    error.prefix = "";
    FASTNORM_REQUIRE(args[i] != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "args[%d] is NULL; required: a pointer", i);
    error.prefix = kPrefix[i];
    FASTNORM_TRY(add(planner, args[i], batch, &before, error));
  }
  error.prefix = "";
  return check_norm_many({batch->desc.at, static_cast<size_t>(count)},
                         {batch->touched.at, static_cast<size_t>(count)}, error);
}

fastnorm_info batch_info(const Device& device, std::span<const NormCall> calls,
                         uint64_t workspace_bytes) {
  fastnorm_info info = {};
  info.kernel = info.kind = info.choice = info.variant = "";
  info.workspace_bytes = workspace_bytes;
  const GridCount grids = device.grids(calls);
  info.launches = grids.launches;
  info.blocks = grids.blocks;
  for (const NormCall& call : calls) {
    info.bytes_read += call.plan->bytes_read;
    info.bytes_written += call.plan->bytes_written;
  }
  if (calls.empty()) return info;
  const NormPlan& first = *calls.front().plan;
  const bool cuda = device.facts.device_type == FASTNORM_DEVICE_CUDA;
  info.kernel = first.entry->name;
  info.threads_per_row = cuda ? first.entry->tile.threads_per_row() : 1;
  info.vectors_per_thread = first.entry->tile.vectors;
  info.rows_per_block = first.rows_per_block;
  info.blocks_per_row = first.entry->tile.blocks;
  info.vector_bytes = first.vector_bytes;
  info.variant = device.variant_text(*first.entry);
  if (first.line != nullptr) {
    info.kind = device.facts.arch->choices->text(first.kind);
    info.choice = first.line->text;
  }
  return info;
}

}  // namespace fastnorm
