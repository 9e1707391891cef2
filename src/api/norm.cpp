// The norm family at the ABI: check, plan, run.
#include "fastnorm/norm.h"

#include <cinttypes>

#include "api/api.h"
#include "core/norm/batch.h"
#include "core/norm/check.h"

namespace fastnorm {
namespace {

FASTNORM_HOT NormPlanner planner_of(const fastnorm_context& context) {
  return {context.device->facts, *context.norm_index, context.norm_tuning()};
}

// Checks and plans one call, then passes its batch to `use`.
template <typename Use>
fastnorm_status with_one(fastnorm_context* context, const fastnorm_norm_args* args, Use use) {
  return guarded([&](Error& error) {
    FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "context is NULL; required: a context");
    NormBatch<1> batch;
    FASTNORM_TRY(plan_one(planner_of(*context), args, &batch, error));
    return use(batch.planned(), error);
  });
}

// Checks and plans several calls, then lets `use` have those with rows.
template <typename Use>
fastnorm_status with_many(fastnorm_context* context, const fastnorm_norm_args* const* args,
                          int32_t count, Use use) {
  return guarded([&](Error& error) {
    FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "context is NULL; required: a context");
    NormBatch<kMaxCalls> batch;
    FASTNORM_TRY(plan_many(planner_of(*context), args, count, &batch, error));
    return use(batch.planned(), error);
  });
}

auto run(fastnorm_context* context, void* workspace, size_t workspace_bytes, void* stream) {
  return [=](std::span<const NormCall> calls, Error& error) {
    // No kernel of the norm needs workspace.
    FASTNORM_TRY(check_workspace(*context, {workspace, workspace_bytes, stream}, 0, error));
    if (calls.empty()) return FASTNORM_OK;
    return context->device->run(calls, workspace, stream, error);
  };
}

auto prepare(fastnorm_context* context) {
  return [=](std::span<const NormCall> calls, Error& error) {
    if (calls.empty()) return FASTNORM_OK;
    return context->device->prepare(calls, error);
  };
}

auto describe(fastnorm_context* context, fastnorm_info* info) {
  return [=](std::span<const NormCall> calls, Error& error) {
    FASTNORM_TRY(check_info(info, error));
    give_struct(norm_info(*context, calls, 0), info);
    return FASTNORM_OK;
  };
}

}  // namespace
}  // namespace fastnorm

fastnorm_status fastnorm_norm_query(fastnorm_context* context, const fastnorm_norm_args* args,
                                    fastnorm_info* info) {
  return fastnorm::with_one(context, args, fastnorm::describe(context, info));
}

fastnorm_status fastnorm_norm_prepare(fastnorm_context* context, const fastnorm_norm_args* args) {
  return fastnorm::with_one(context, args, fastnorm::prepare(context));
}

fastnorm_status fastnorm_norm(fastnorm_context* context, const fastnorm_norm_args* args,
                              void* workspace, size_t workspace_bytes, void* stream) {
  return fastnorm::with_one(context, args,
                            fastnorm::run(context, workspace, workspace_bytes, stream));
}

fastnorm_status fastnorm_norm_many_query(fastnorm_context* context,
                                         const fastnorm_norm_args* const* args, int32_t count,
                                         fastnorm_info* info) {
  return fastnorm::with_many(context, args, count, fastnorm::describe(context, info));
}

fastnorm_status fastnorm_norm_many_prepare(fastnorm_context* context,
                                           const fastnorm_norm_args* const* args, int32_t count) {
  return fastnorm::with_many(context, args, count, fastnorm::prepare(context));
}

fastnorm_status fastnorm_norm_many(fastnorm_context* context, const fastnorm_norm_args* const* args,
                                   int32_t count, void* workspace, size_t workspace_bytes,
                                   void* stream) {
  return fastnorm::with_many(context, args, count,
                             fastnorm::run(context, workspace, workspace_bytes, stream));
}
