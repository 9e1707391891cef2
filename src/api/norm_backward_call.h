// What entry points of the backward families do with calls that are checked and planned.
#pragma once

#include <cinttypes>

#include "api/api.h"
#include "core/norm_backward_batch.h"

namespace fastnorm {

inline NormBackwardPlanner backward_planner_of(const fastnorm_context& context) {
  return {*context.device, context.norm_backward_tuning()};
}

inline auto run_backward(fastnorm_context* context, void* workspace, size_t workspace_bytes,
                         void* stream) {
  return [=](const NormBackwardBatch& batch, Error& error) {
    const uint64_t needed = batch.workspace_bytes;
    FASTNORM_TRY(check_workspace(*context, {workspace, workspace_bytes, stream}, needed, error));
    if (batch.together.launches != 0) {
      return context->device->run_norm_heads_backward(heads_gradients(batch), batch.together,
                                                      workspace, stream, error);
    }
    for (const NormBackwardCall& call : batch.planned())
      FASTNORM_TRY(context->device->check_norm_backward_values(call.desc, error));
    for (const NormBackwardCall& call : batch.planned()) {
      // By integers: without a workspace there is no address to add to.
      const uintptr_t at = reinterpret_cast<uintptr_t>(workspace) + call.workspace_offset;
      void* const own = needed == 0 ? nullptr : reinterpret_cast<void*>(at);
      FASTNORM_TRY(context->device->run_norm_backward(call.desc, call.plan, own, stream, error));
    }
    return FASTNORM_OK;
  };
}

inline auto prepare_backward(fastnorm_context* context) {
  return [=](const NormBackwardBatch& batch, Error& error) {
    if (batch.together.launches != 0) {
      return context->device->prepare_norm_heads_backward(heads_gradients(batch), batch.together,
                                                          error);
    }
    for (const NormBackwardCall& call : batch.planned())
      FASTNORM_TRY(context->device->prepare_norm_backward(call.desc, call.plan, error));
    return FASTNORM_OK;
  };
}

inline auto describe_backward(fastnorm_context* context, fastnorm_info* info) {
  return [=](const NormBackwardBatch& batch, Error& error) {
    FASTNORM_TRY(check_info(info, error));
    give_struct(norm_backward_info(*context->device, batch), info);
    return FASTNORM_OK;
  };
}

}  // namespace fastnorm
