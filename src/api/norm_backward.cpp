// The backward family at the ABI: check, plan, run.
#include "fastnorm/norm_backward.h"

#include "api/norm_backward_call.h"

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
    FASTNORM_TRY(plan_norm_backward_one(backward_planner_of(*context), args, &batch, error));
    return use(batch, error);
  });
}

// Checks and plans several calls, then lets `use` have their batch.
template <typename Use>
fastnorm_status with_many(fastnorm_context* context, const fastnorm_norm_backward_args* const* args,
                          int32_t count, Use use) {
  return guarded([&](Error& error) {
    FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "context is NULL; required: a context");
    NormBackwardBatch batch;
    FASTNORM_TRY(
        plan_norm_backward_many(backward_planner_of(*context), args, count, &batch, error));
    return use(batch, error);
  });
}

}  // namespace
}  // namespace fastnorm

fastnorm_status fastnorm_norm_backward_query(fastnorm_context* context,
                                             const fastnorm_norm_backward_args* args,
                                             fastnorm_info* info) {
  return fastnorm::with_one(context, args, fastnorm::describe_backward(context, info));
}

fastnorm_status fastnorm_norm_backward_prepare(fastnorm_context* context,
                                               const fastnorm_norm_backward_args* args) {
  return fastnorm::with_one(context, args, fastnorm::prepare_backward(context));
}

fastnorm_status fastnorm_norm_backward(fastnorm_context* context,
                                       const fastnorm_norm_backward_args* args, void* workspace,
                                       size_t workspace_bytes, void* stream) {
  return fastnorm::with_one(context, args,
                            fastnorm::run_backward(context, workspace, workspace_bytes, stream));
}

fastnorm_status fastnorm_norm_backward_many_query(fastnorm_context* context,
                                                  const fastnorm_norm_backward_args* const* args,
                                                  int32_t count, fastnorm_info* info) {
  return fastnorm::with_many(context, args, count, fastnorm::describe_backward(context, info));
}

fastnorm_status fastnorm_norm_backward_many_prepare(fastnorm_context* context,
                                                    const fastnorm_norm_backward_args* const* args,
                                                    int32_t count) {
  return fastnorm::with_many(context, args, count, fastnorm::prepare_backward(context));
}

fastnorm_status fastnorm_norm_backward_many(fastnorm_context* context,
                                            const fastnorm_norm_backward_args* const* args,
                                            int32_t count, void* workspace, size_t workspace_bytes,
                                            void* stream) {
  return fastnorm::with_many(context, args, count,
                             fastnorm::run_backward(context, workspace, workspace_bytes, stream));
}
