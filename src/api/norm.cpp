// The norm family at the ABI: check, plan, run.
#include "fastnorm/norm.h"

#include <cinttypes>

#include "api/api.h"
#include "core/norm_check.h"

namespace fastnorm {
namespace {

// Room for values that are not there yet: nobody clears them before they are assigned.
template <typename Value, int32_t kCount>
union Room {
  Room() {}
  Value at[kCount];
};

// Checked and planned calls of one entry point, on its stack.
template <int32_t kCalls>
struct Batch {
  Room<NormDesc, kCalls> desc;
  Room<Touched, kCalls> touched;
  Room<NormPlan, kCalls> plan;
  NormCall call[kCalls];  // those that have rows
  int32_t count = 0;      // of desc and plan
  int32_t calls = 0;      // of call
  uint64_t workspace_bytes = 0;
};

// Names a part of a fastnorm_norm_many in error texts.
constexpr const char* kPrefix[kMaxCalls] = {"args[0].", "args[1].", "args[2].", "args[3].",
                                            "args[4].", "args[5].", "args[6].", "args[7]."};

// Checks and plans a call. *before is the last of the batch that has rows, or -1 where that shares a launch already; this one may share its.
template <int32_t kCalls>
fastnorm_status add(const fastnorm_context& context, const fastnorm_norm_args* args,
                    Batch<kCalls>* batch, int32_t* before, Error& error) {
  const DeviceFacts& facts = context.device->facts;
  const NormIndex& index = *context.norm_index;
  const int32_t at = batch->count;
  NormDesc& desc = batch->desc.at[at];
  NormPlan& plan = batch->plan.at[at];
  FASTNORM_TRY(
      check_norm(args, {facts.device_type, facts.device_id}, &desc, &batch->touched.at[at], error));
  const bool second = *before >= 0;
  const bool like = second && plan_like(batch->desc.at[*before], batch->plan.at[*before], desc,
                                        facts, &plan, error);
  if (!like) {
    FASTNORM_TRY(
        make_plan(desc, facts, index.table(), &plan, error, context.norm_tuning.get(), &index));
  }
  ++batch->count;
  if (plan.entry == nullptr) return FASTNORM_OK;  // no rows
  batch->call[batch->calls++] = {&desc, &plan};
  if (plan.workspace_bytes > batch->workspace_bytes) batch->workspace_bytes = plan.workspace_bytes;
  // Query and key heads differ in rows, which must not keep them from one launch.
  const bool together =
      like || (second && plan_together(batch->desc.at[*before], desc, facts, index.table(),
                                       &batch->plan.at[*before], &plan));
  *before = together ? -1 : at;
  return FASTNORM_OK;
}

fastnorm_status plan_one(const fastnorm_context* context, const fastnorm_norm_args* args,
                         Batch<1>* batch, Error& error) {
  FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "context is NULL; required: a context");
  int32_t before = -1;
  return add(*context, args, batch, &before, error);
}

fastnorm_status plan_many(const fastnorm_context* context, const fastnorm_norm_args* const* args,
                          int32_t count, Batch<kMaxCalls>* batch, Error& error) {
  FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "context is NULL; required: a context");
  FASTNORM_REQUIRE(count >= 0 && count <= kMaxCalls, FASTNORM_ERROR_ARGUMENT,
                   "count is %d; required: 0 to %d", count, kMaxCalls);
  FASTNORM_REQUIRE(args != nullptr || count == 0, FASTNORM_ERROR_ARGUMENT,
                   "args is NULL; required: %d pointers", count);
  int32_t before = -1;
  for (int32_t i = 0; i < count; ++i) {
    error.prefix = "";
    FASTNORM_REQUIRE(args[i] != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "args[%d] is NULL; required: a pointer", i);
    error.prefix = kPrefix[i];
    FASTNORM_TRY(add(*context, args[i], batch, &before, error));
  }
  error.prefix = "";
  FASTNORM_TRY(check_norm_many({batch->desc.at, static_cast<size_t>(count)},
                               {batch->touched.at, static_cast<size_t>(count)}, error));
  return FASTNORM_OK;
}

template <int32_t kCalls>
fastnorm_status run(fastnorm_context& context, const Batch<kCalls>& batch, void* workspace,
                    size_t workspace_bytes, void* stream, Error& error) {
  FASTNORM_REQUIRE(workspace_bytes >= batch.workspace_bytes, FASTNORM_ERROR_ARGUMENT,
                   "workspace_bytes is %zu; required: at least %" PRIu64, workspace_bytes,
                   batch.workspace_bytes);
  FASTNORM_REQUIRE(batch.workspace_bytes == 0 ||
                       (workspace != nullptr && reinterpret_cast<uintptr_t>(workspace) % 256 == 0),
                   FASTNORM_ERROR_ARGUMENT, "workspace is %p; required: a 256-byte aligned address",
                   workspace);
  FASTNORM_REQUIRE(stream == nullptr || context.device->facts.device_type == FASTNORM_DEVICE_CUDA,
                   FASTNORM_ERROR_ARGUMENT,
                   "stream is %p and the context is a CPU's; required: NULL", stream);
  if (batch.calls == 0) return FASTNORM_OK;
  return context.device->run_norm({batch.call, static_cast<size_t>(batch.calls)}, workspace, stream,
                                  error);
}

template <int32_t kCalls>
fastnorm_status prepare(fastnorm_context& context, const Batch<kCalls>& batch, Error& error) {
  if (batch.calls == 0) return FASTNORM_OK;
  return context.device->prepare_norm({batch.call, static_cast<size_t>(batch.calls)}, error);
}

template <int32_t kCalls>
fastnorm_status describe(const fastnorm_context& context, const Batch<kCalls>& batch,
                         fastnorm_info* info, Error& error) {
  FASTNORM_REQUIRE(info != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "info is NULL; required: a fastnorm_info");
  FASTNORM_REQUIRE(info->struct_size >= kFirstInfo, FASTNORM_ERROR_ARGUMENT,
                   "info.struct_size is %zu; required: at least %zu", info->struct_size,
                   kFirstInfo);
  fastnorm_info result = {};
  result.kernel = "";
  result.workspace_bytes = batch.workspace_bytes;
  const bool cuda = context.device->facts.device_type == FASTNORM_DEVICE_CUDA;
  const GridCount grids = context.device->grids({batch.call, static_cast<size_t>(batch.calls)});
  result.launches = grids.launches;
  result.blocks = grids.blocks;
  for (int32_t i = 0; i < batch.calls; ++i) {
    const NormPlan& plan = *batch.call[i].plan;
    result.bytes_read += plan.bytes_read;
    result.bytes_written += plan.bytes_written;
    if (i > 0) continue;
    result.kernel = plan.entry->name;
    result.threads_per_row = cuda ? plan.entry->tile.threads_per_row() : 1;
    result.vectors_per_thread = plan.entry->tile.vectors;
    result.rows_per_block = plan.rows_per_block;
    result.blocks_per_row = plan.entry->tile.blocks;
    result.vector_bytes = plan.vector_bytes;
  }
  give_struct(result, info);
  return FASTNORM_OK;
}

}  // namespace
}  // namespace fastnorm

using fastnorm::Error;

fastnorm_status fastnorm_norm_query(fastnorm_context* context, const fastnorm_norm_args* args,
                                    fastnorm_info* info) {
  return fastnorm::guarded([&](Error& error) {
    fastnorm::Batch<1> batch;
    FASTNORM_TRY(fastnorm::plan_one(context, args, &batch, error));
    return fastnorm::describe(*context, batch, info, error);
  });
}

fastnorm_status fastnorm_norm_prepare(fastnorm_context* context, const fastnorm_norm_args* args) {
  return fastnorm::guarded([&](Error& error) {
    fastnorm::Batch<1> batch;
    FASTNORM_TRY(fastnorm::plan_one(context, args, &batch, error));
    return fastnorm::prepare(*context, batch, error);
  });
}

fastnorm_status fastnorm_norm(fastnorm_context* context, const fastnorm_norm_args* args,
                              void* workspace, size_t workspace_bytes, void* stream) {
  return fastnorm::guarded([&](Error& error) {
    fastnorm::Batch<1> batch;
    FASTNORM_TRY(fastnorm::plan_one(context, args, &batch, error));
    return fastnorm::run(*context, batch, workspace, workspace_bytes, stream, error);
  });
}

fastnorm_status fastnorm_norm_many_query(fastnorm_context* context,
                                         const fastnorm_norm_args* const* args, int32_t count,
                                         fastnorm_info* info) {
  return fastnorm::guarded([&](Error& error) {
    fastnorm::Batch<fastnorm::kMaxCalls> batch;
    FASTNORM_TRY(fastnorm::plan_many(context, args, count, &batch, error));
    return fastnorm::describe(*context, batch, info, error);
  });
}

fastnorm_status fastnorm_norm_many_prepare(fastnorm_context* context,
                                           const fastnorm_norm_args* const* args, int32_t count) {
  return fastnorm::guarded([&](Error& error) {
    fastnorm::Batch<fastnorm::kMaxCalls> batch;
    FASTNORM_TRY(fastnorm::plan_many(context, args, count, &batch, error));
    return fastnorm::prepare(*context, batch, error);
  });
}

fastnorm_status fastnorm_norm_many(fastnorm_context* context, const fastnorm_norm_args* const* args,
                                   int32_t count, void* workspace, size_t workspace_bytes,
                                   void* stream) {
  return fastnorm::guarded([&](Error& error) {
    fastnorm::Batch<fastnorm::kMaxCalls> batch;
    FASTNORM_TRY(fastnorm::plan_many(context, args, count, &batch, error));
    return fastnorm::run(*context, batch, workspace, workspace_bytes, stream, error);
  });
}
