// The backward family at the ABI: check, plan, run.
#include "fastnorm/norm_backward.h"

#include <cinttypes>

#include "api/api.h"
#include "core/norm_backward_batch.h"

namespace fastnorm {
namespace {

// Checks and plans one call, then lets `use` have its batch.
template <typename Use>
fastnorm_status with_one(fastnorm_context* context, const fastnorm_norm_backward_args* args,
                         Use use) {
  return guarded([&](Error& error) {
    FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "context is NULL; required: a context");
    NormBackwardBatch batch;
    FASTNORM_TRY(plan_norm_backward_one(*context->device, args, &batch, error));
    return use(batch, error);
  });
}

// The same for several.
template <typename Use>
fastnorm_status with_many(fastnorm_context* context, const fastnorm_norm_backward_args* const* args,
                          int32_t count, Use use) {
  return guarded([&](Error& error) {
    FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "context is NULL; required: a context");
    NormBackwardBatch batch;
    FASTNORM_TRY(plan_norm_backward_many(*context->device, args, count, &batch, error));
    return use(batch, error);
  });
}

auto run(fastnorm_context* context, void* workspace, size_t workspace_bytes, void* stream) {
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
    for (const NormBackwardCall& call : batch.planned()) {
      // By integers: without a workspace there is no address to add to.
      const uintptr_t at = reinterpret_cast<uintptr_t>(workspace) + call.workspace_offset;
      void* const own = needed == 0 ? nullptr : reinterpret_cast<void*>(at);
      FASTNORM_TRY(context->device->run_norm_backward(call.desc, call.plan, own, stream, error));
    }
    return FASTNORM_OK;
  };
}

auto prepare(fastnorm_context* context) {
  return [=](const NormBackwardBatch& batch, Error& error) {
    for (const NormBackwardCall& call : batch.planned())
      FASTNORM_TRY(context->device->prepare_norm_backward(call.desc, call.plan, error));
    return FASTNORM_OK;
  };
}

auto describe(fastnorm_context* context, fastnorm_info* info) {
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

}  // namespace
}  // namespace fastnorm

fastnorm_status fastnorm_norm_backward_query(fastnorm_context* context,
                                             const fastnorm_norm_backward_args* args,
                                             fastnorm_info* info) {
  return fastnorm::with_one(context, args, fastnorm::describe(context, info));
}

fastnorm_status fastnorm_norm_backward_prepare(fastnorm_context* context,
                                               const fastnorm_norm_backward_args* args) {
  return fastnorm::with_one(context, args, fastnorm::prepare(context));
}

fastnorm_status fastnorm_norm_backward(fastnorm_context* context,
                                       const fastnorm_norm_backward_args* args, void* workspace,
                                       size_t workspace_bytes, void* stream) {
  return fastnorm::with_one(context, args,
                            fastnorm::run(context, workspace, workspace_bytes, stream));
}

fastnorm_status fastnorm_norm_backward_many_query(fastnorm_context* context,
                                                  const fastnorm_norm_backward_args* const* args,
                                                  int32_t count, fastnorm_info* info) {
  return fastnorm::with_many(context, args, count, fastnorm::describe(context, info));
}

fastnorm_status fastnorm_norm_backward_many_prepare(fastnorm_context* context,
                                                    const fastnorm_norm_backward_args* const* args,
                                                    int32_t count) {
  return fastnorm::with_many(context, args, count, fastnorm::prepare(context));
}

fastnorm_status fastnorm_norm_backward_many(fastnorm_context* context,
                                            const fastnorm_norm_backward_args* const* args,
                                            int32_t count, void* workspace, size_t workspace_bytes,
                                            void* stream) {
  return fastnorm::with_many(context, args, count,
                             fastnorm::run(context, workspace, workspace_bytes, stream));
}
