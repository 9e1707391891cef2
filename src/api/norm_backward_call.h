// What entry points of the backward families do with calls that are checked and planned.
#pragma once

#include <cinttypes>

#include "api/api.h"
#include "core/norm_heads_backward/batch.h"

namespace fastnorm {

// Without tuning, or with that of a context.
inline NormBackwardPlanner backward_planner_of(const Device& device,
                                               const NormBackwardTuning* tuning = nullptr) {
  return {device.facts, device.table<NormBackwardEntry>(), device.table<NormHeadsBackwardEntry>(),
          tuning};
}
inline NormBackwardPlanner backward_planner_of(const fastnorm_context& context) {
  return backward_planner_of(*context.device, context.norm_backward_tuning());
}

// Calls `use` with what a device takes of a batch that launches something.
template <typename Use>
fastnorm_status with_call(const NormBackwardBatch& batch, Use use) {
  if (batch.together.launches != 0) {
    const HeadsGradients gradients = heads_gradients(batch);
    return use(NormHeadsBackwardCall{&gradients, &batch.together});
  }
  return batch.count == 0 ? FASTNORM_OK : use(batch.planned());
}

inline auto run_backward(fastnorm_context* context, void* workspace, size_t workspace_bytes,
                         void* stream) {
  return [=](const NormBackwardBatch& batch, Error& error) {
    FASTNORM_TRY(check_workspace(*context, {workspace, workspace_bytes, stream},
                                 batch.workspace_bytes, error));
    return with_call(batch, [&](const auto& call) {
      return context->device->run(call, workspace, stream, error);
    });
  };
}

inline auto prepare_backward(fastnorm_context* context) {
  return [=](const NormBackwardBatch& batch, Error& error) {
    return with_call(batch,
                     [&](const auto& call) { return context->device->prepare(call, error); });
  };
}

inline auto describe_backward(fastnorm_context* context, fastnorm_info* info) {
  return [=](const NormBackwardBatch& batch, Error& error) {
    FASTNORM_TRY(check_info(info, error));
    give_struct(norm_backward_info(context->device->facts, batch), info);
    return FASTNORM_OK;
  };
}

}  // namespace fastnorm
