// What entry points of the backward families do with calls that are checked and planned.
#pragma once

#include <cinttypes>

#include "api/api.h"
#include "core/norm_backward_batch.h"

namespace fastnorm {

inline auto run_backward(fastnorm_context* context, void* workspace, size_t workspace_bytes,
                         void* stream) {
  return [=](const NormBackwardBatch& batch, Error& error) {
    const uint64_t needed = batch.workspace_bytes;
    FASTNORM_REQUIRE(workspace_bytes >= needed, FASTNORM_ERROR_ARGUMENT,
                     "workspace_bytes is %zu; required: at least %" PRIu64, workspace_bytes,
                     needed);
    FASTNORM_REQUIRE(
        needed == 0 || (workspace != nullptr && reinterpret_cast<uintptr_t>(workspace) % 256 == 0),
        FASTNORM_ERROR_ARGUMENT, "workspace is %p; required: a 256-byte aligned address",
        workspace);
    FASTNORM_REQUIRE(
        stream == nullptr || context->device->facts.device_type == FASTNORM_DEVICE_CUDA,
        FASTNORM_ERROR_ARGUMENT, "stream is %p and the context is a CPU's; required: NULL", stream);
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
    for (const NormBackwardCall& call : batch.planned())
      FASTNORM_TRY(context->device->prepare_norm_backward(call.desc, call.plan, error));
    return FASTNORM_OK;
  };
}

inline auto describe_backward(fastnorm_context* context, fastnorm_info* info) {
  return [=](const NormBackwardBatch& batch, Error& error) {
    FASTNORM_REQUIRE(info != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "info is NULL; required: a fastnorm_info");
    FASTNORM_REQUIRE(info->struct_size >= kFirstInfo, FASTNORM_ERROR_ARGUMENT,
                     "info.struct_size is %zu; required: at least %zu", info->struct_size,
                     kFirstInfo);
    give_struct(norm_backward_info(*context->device, batch), info);
    return FASTNORM_OK;
  };
}

}  // namespace fastnorm
