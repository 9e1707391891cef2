#include "core/norm/batch.h"

#include "core/common/part_list.h"
#include "core/common/pdl.h"
#include "core/norm/check.h"
#include "core/norm/grid.h"

namespace fastnorm {
namespace {

static_assert(kMaxCalls == kMostListParts);

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
  FASTNORM_TRY(check_part_list(kArgsNames, args, count, error));
  int32_t before = kNone;
  FASTNORM_TRY(for_each_part(kArgsNames, args, count, error, [&](int32_t i) {
    return add(planner, args[i], batch, &before, error);
  }));
  return check_norm_many({batch->desc.at, static_cast<size_t>(count)},
                         {batch->touched.at, static_cast<size_t>(count)}, error);
}

fastnorm_info batch_info(const DeviceFacts& facts, std::span<const NormCall> calls,
                         uint64_t workspace_bytes, const char* variant) {
  fastnorm_info info = {};
  info.kernel = info.kind = info.choice = info.variant = "";
  info.workspace_bytes = workspace_bytes;
  const GridCount grids = count_grids(calls, facts);
  info.launches = grids.launches;
  info.blocks = grids.blocks;
  for (const NormCall& call : calls) {
    info.bytes_read += call.plan->bytes_read;
    info.bytes_written += call.plan->bytes_written;
  }
  if (calls.empty()) return info;
  const NormPlan& first = *calls.front().plan;
  const bool cuda = facts.device_type == FASTNORM_DEVICE_CUDA;
  info.kernel = first.entry->name;
  info.threads_per_row = cuda ? first.entry->tile.threads_per_row() : 1;
  info.vectors_per_thread = first.entry->tile.vectors;
  info.rows_per_block = first.rows_per_block;
  info.blocks_per_row = first.entry->tile.blocks;
  info.vector_bytes = first.vector_bytes;
  info.variant = variant;
  if (first.line != nullptr) {
    info.kind = facts.arch->choices->text(first.kind);
    info.choice = first.line->text;
  }
  return info;
}

}  // namespace fastnorm
