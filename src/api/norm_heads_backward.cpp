// The family norm_heads_backward at the ABI: check, plan, run.
#include "fastnorm/norm_heads_backward.h"

#include "api/norm_backward_call.h"

namespace fastnorm {
namespace {

// Checks and plans a call, then lets `use` have its batch.
template <typename Use>
fastnorm_status with_heads(fastnorm_context* context, const fastnorm_norm_heads_args* args,
                           const fastnorm_norm_heads_backward_part* const* parts, int32_t count,
                           Use use) {
  return guarded([&](Error& error) {
    FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "context is NULL; required: a context");
    NormBackwardBatch batch;
    FASTNORM_TRY(
        plan_norm_heads_backward(backward_planner_of(*context), args, parts, count, &batch, error));
    return use(batch, error);
  });
}

}  // namespace
}  // namespace fastnorm

fastnorm_status fastnorm_norm_heads_backward_query(
    fastnorm_context* context, const fastnorm_norm_heads_args* args,
    const fastnorm_norm_heads_backward_part* const* parts, int32_t count, fastnorm_info* info) {
  return fastnorm::with_heads(context, args, parts, count,
                              fastnorm::describe_backward(context, info));
}

fastnorm_status fastnorm_norm_heads_backward_prepare(
    fastnorm_context* context, const fastnorm_norm_heads_args* args,
    const fastnorm_norm_heads_backward_part* const* parts, int32_t count) {
  return fastnorm::with_heads(context, args, parts, count, fastnorm::prepare_backward(context));
}

fastnorm_status fastnorm_norm_heads_backward(fastnorm_context* context,
                                             const fastnorm_norm_heads_args* args,
                                             const fastnorm_norm_heads_backward_part* const* parts,
                                             int32_t count, void* workspace, size_t workspace_bytes,
                                             void* stream) {
  return fastnorm::with_heads(context, args, parts, count,
                              fastnorm::run_backward(context, workspace, workspace_bytes, stream));
}
