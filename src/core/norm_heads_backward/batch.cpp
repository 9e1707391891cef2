#include "core/norm_heads_backward/batch.h"

#include "core/common/part_list.h"
#include "core/common/pdl.h"
#include "core/common/workspace.h"
#include "core/norm_backward/cpu_plan.h"
#include "core/norm_heads/plan.h"

namespace fastnorm {
namespace {

fastnorm_status plan_part(const NormBackwardPlanner& planner, const NormBackwardDesc& desc,
                          NormBackwardPlan* plan, Error& error) {
  const DeviceFacts& facts = planner.facts;
  return facts.device_type == FASTNORM_DEVICE_CPU
             ? plan_norm_backward_cpu(desc, facts, plan, error)
             : plan_norm_backward(desc, facts, planner.table, planner.tuning, plan, error);
}

// The parts of a call on a device. Kernels that hold rows of RMSNorm have no sums of dbias: these
// are a part of their own where that lets the rest run on such a kernel.
NormBackwardParts parts_on(const NormBackwardPlanner& planner, const NormBackwardDesc& whole) {
  const NormBackwardParts parts = norm_backward_parts(whole);
  const DeviceFacts& facts = planner.facts;
  if (facts.device_type != FASTNORM_DEVICE_CUDA || parts.count != 1 ||
      whole.kind != FASTNORM_NORM_RMS || !parts.at[0].dbias || !parts.at[0].dweight) {
    return parts;
  }
  const NormBackwardParts apart = norm_backward_parts(whole, true);
  const bool holds = plans_held_rows(apart.at[1], facts, planner.table, planner.tuning);
  return holds ? apart : parts;
}

fastnorm_status add_checked(const NormBackwardPlanner& planner, const NormBackwardDesc& whole,
                            NormBackwardBatch* batch, Error& error) {
  const NormBackwardParts parts = parts_on(planner, whole);
  for (int32_t i = 0; i < parts.count; ++i) {
    FASTNORM_REQUIRE(batch->count < NormBackwardBatch::kMostParts, FASTNORM_ERROR_UNSUPPORTED,
                     "the sums of the calls vary along different dimensions and need more than %d "
                     "passes; nearest: fewer calls",
                     NormBackwardBatch::kMostParts);
    NormBackwardCall& call = batch->call.at[batch->count];
    call.desc = parts.at[i];
    call.desc.flags = with_pdl(call.desc.flags, planner.facts.pdl);
    call.plan = {};
    call.first = parts.count == 2 && i == 0;
    FASTNORM_TRY(plan_part(planner, call.desc, &call.plan, error));
    call.workspace_offset = take_region(&batch->workspace_bytes, call.plan.workspace_bytes);
    if (call.plan.launches != 0) ++batch->count;
  }
  return FASTNORM_OK;
}

fastnorm_status add(const NormBackwardPlanner& planner, const fastnorm_norm_backward_args* args,
                    NormBackwardDesc* whole, NormBackwardBatch* batch, Error& error) {
  const DeviceFacts& facts = planner.facts;
  FASTNORM_TRY(check_norm_backward(args, {facts.device_type, facts.device_id}, whole, error));
  return add_checked(planner, *whole, batch, error);
}

}  // namespace

fastnorm_status plan_norm_backward_one(const NormBackwardPlanner& planner,
                                       const fastnorm_norm_backward_args* args,
                                       NormBackwardBatch* batch, Error& error) {
  NormBackwardDesc whole;
  return add(planner, args, &whole, batch, error);
}

fastnorm_status plan_norm_backward_many(const NormBackwardPlanner& planner,
                                        const fastnorm_norm_backward_args* const* args,
                                        int32_t count, NormBackwardBatch* batch, Error& error) {
  FASTNORM_TRY(check_part_list(kArgsNames, args, count, error));
  NormBackwardDesc wholes[kMaxCalls];
  FASTNORM_TRY(for_each_part(kArgsNames, args, count, error, [&](int32_t i) {
    return add(planner, args[i], &wholes[i], batch, error);
  }));
  return check_norm_backward_many({wholes, static_cast<size_t>(count)}, "args", error);
}

HeadsGradients heads_gradients(const NormBackwardBatch& batch) {
  HeadsGradients gradients;
  for (const NormBackwardCall& call : batch.planned()) {
    gradients.first[gradients.count] = call.first;
    gradients.at[gradients.count++] = &call.desc;
  }
  return gradients;
}

namespace {

// All parts on kernels of the family, where one holds their rows or norm_backward's cannot do them.
fastnorm_status plan_together(const NormBackwardPlanner& planner, const NormHeadsBackwardDesc& desc,
                              NormBackwardBatch* batch, Error& error) {
  if (planner.heads_table.empty()) return FASTNORM_OK;
  bool needed = false;
  for (int32_t i = 0; i < desc.count; ++i) {
    const NormBackwardParts parts = norm_backward_parts(desc.wholes[i]);
    for (int32_t k = 0; k < parts.count; ++k) {
      NormBackwardCall& call = batch->call.at[batch->count++];
      call = {parts.at[k], {}, 0, parts.count == 2 && k == 0};
      call.desc.flags = with_pdl(call.desc.flags, planner.facts.pdl);
    }
    needed = needed || desc.wholes[i].of_heads.needs_own_kernels();
  }
  NormHeadsBackwardPlan plan;
  FASTNORM_TRY(plan_norm_heads_gradients(heads_gradients(*batch), planner.facts,
                                         planner.heads_table, &plan, error));
  if (needed || (plan.launches != 0 && plan.entry->variant.is_held())) {
    batch->together = plan;
    batch->workspace_bytes = plan.workspace_bytes;
  }
  if (batch->together.launches == 0) batch->count = 0;
  return FASTNORM_OK;
}

}  // namespace

fastnorm_status plan_norm_heads_backward(const NormBackwardPlanner& planner,
                                         const fastnorm_norm_heads_args* args,
                                         const fastnorm_norm_heads_backward_part* const* parts,
                                         int32_t count, NormBackwardBatch* batch, Error& error) {
  const DeviceFacts& facts = planner.facts;
  NormHeadsBackwardDesc desc;
  FASTNORM_TRY(check_norm_heads_backward(args, parts, count, {facts.device_type, facts.device_id},
                                         &desc, error));
  if (facts.device_type == FASTNORM_DEVICE_CUDA) {
    FASTNORM_TRY(plan_together(planner, desc, batch, error));
    if (batch->together.launches != 0) return FASTNORM_OK;
  }
  return for_each_part(kPartsNames, parts, count, error, [&](int32_t i) {
    return add_checked(planner, desc.wholes[i], batch, error);
  });
}

fastnorm_info norm_backward_info(const DeviceFacts& facts, const NormBackwardBatch& batch) {
  const bool cuda = facts.device_type == FASTNORM_DEVICE_CUDA;
  fastnorm_info info = {};
  info.kernel = info.kind = info.choice = info.variant = "";
  info.workspace_bytes = batch.workspace_bytes;
  if (const NormHeadsBackwardPlan& plan = batch.together; plan.launches != 0) {
    const NormHeadsBackwardVariant& v = plan.entry->variant;
    info.kernel = plan.kernel;
    info.launches = plan.launches;
    info.blocks = plan.blocks;
    info.bytes_read = plan.bytes_read;
    info.bytes_written = plan.bytes_written;
    info.threads_per_row = v.is_held() ? v.threads : 32;
    info.vectors_per_thread = v.vectors;
    info.rows_per_block = v.is_held() ? v.rows : kGeneralHeadsWarps;
    info.blocks_per_row = 1;
    info.vector_bytes = 16;
    return info;
  }
  for (const NormBackwardCall& call : batch.planned()) {
    info.launches += call.plan.launches;
    info.blocks += call.plan.blocks;
    info.bytes_read += call.plan.bytes_read;
    info.bytes_written += call.plan.bytes_written;
    // The other part reads dy too.
    if (call.first && cuda) {
      const NormBackwardDesc& d = call.desc;
      info.bytes_read -= static_cast<uint64_t>(d.rows * d.n * dtype_bytes(d.dy.dtype));
    }
  }
  if (batch.count == 0) return info;
  // The part that writes dx.
  const bool apart = batch.count > 1 && batch.call.at[0].first;
  const NormBackwardPlan& plan = batch.call.at[apart ? 1 : 0].plan;
  const NormBackwardEntry* entry = plan.entry;
  info.kernel = plan.kernel;
  info.kind = plan.kind;
  info.choice = plan.choice;
  info.threads_per_row = entry != nullptr ? entry->variant.row_threads() : 1;
  info.vectors_per_thread = entry != nullptr ? entry->variant.vectors : 0;
  info.rows_per_block = entry != nullptr ? entry->variant.lanes : 1;
  info.blocks_per_row = entry != nullptr ? entry->variant.blocks : 1;
  info.vector_bytes = cuda ? 16 : facts.vector_bytes;
  return info;
}

}  // namespace fastnorm
