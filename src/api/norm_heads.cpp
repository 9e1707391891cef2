// The norm_heads family at the ABI: check, plan, run.
#include "fastnorm/norm_heads.h"

#include "api/api.h"
#include "core/common/pdl.h"
#include "core/norm_heads/check.h"
#include "core/norm_heads/plan.h"

namespace fastnorm {
namespace {

// Checks and plans a call, then passes it to `use`.
template <typename Use>
fastnorm_status with_heads(fastnorm_context* context, const fastnorm_norm_heads_args* args,
                           const fastnorm_norm_heads_part* const* parts, int32_t count, Use use) {
  return guarded([&](Error& error) {
    FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "context is NULL; required: a context");
    const DeviceFacts& facts = context->device->facts;
    NormHeadsDesc desc;
    NormHeadsPlan plan;
    FASTNORM_TRY(
        check_norm_heads(args, parts, count, {facts.device_type, facts.device_id}, &desc, error));
    desc.pdl = with_pdl(desc.pdl, facts.pdl);
    FASTNORM_TRY(
        plan_norm_heads(desc, facts, context->device->table<NormHeadsEntry>(), &plan, error));
    return use(desc, plan, error);
  });
}

fastnorm_status describe(const DeviceFacts& facts, const NormHeadsPlan& plan, fastnorm_info* info,
                         Error& error) {
  FASTNORM_TRY(check_info(info, error));
  fastnorm_info result = {};
  result.kind = result.choice = result.variant = "";
  result.kernel = plan.kernel;
  result.bytes_read = plan.bytes_read;
  result.bytes_written = plan.bytes_written;
  result.launches = plan.launches;
  result.blocks = plan.blocks;
  if (plan.entry != nullptr) {
    const NormHeadsVariant& v = plan.entry->variant;
    result.threads_per_row = v.is_held() ? v.threads : 32;
    result.rows_per_block = v.is_held() ? v.groups() : kGeneralHeadsWarps;
    result.blocks_per_row = 1;
    result.vector_bytes = 16;
  } else if (plan.launches != 0) {
    result.threads_per_row = 1;
    result.rows_per_block = static_cast<int32_t>(plan.grain);
    result.blocks_per_row = 1;
    result.vector_bytes = facts.vector_bytes;
  }
  give_struct(result, info);
  return FASTNORM_OK;
}

}  // namespace
}  // namespace fastnorm

using fastnorm::Error;
using fastnorm::NormHeadsDesc;
using fastnorm::NormHeadsPlan;

fastnorm_status fastnorm_norm_heads_query(fastnorm_context* context,
                                          const fastnorm_norm_heads_args* args,
                                          const fastnorm_norm_heads_part* const* parts,
                                          int32_t count, fastnorm_info* info) {
  return fastnorm::with_heads(context, args, parts, count,
                              [=](const NormHeadsDesc&, const NormHeadsPlan& plan, Error& error) {
                                return fastnorm::describe(context->device->facts, plan, info,
                                                          error);
                              });
}

fastnorm_status fastnorm_norm_heads_prepare(fastnorm_context* context,
                                            const fastnorm_norm_heads_args* args,
                                            const fastnorm_norm_heads_part* const* parts,
                                            int32_t count) {
  return fastnorm::with_heads(
      context, args, parts, count,
      [=](const NormHeadsDesc& desc, const NormHeadsPlan& plan, Error& error) -> fastnorm_status {
        if (plan.launches == 0) return FASTNORM_OK;
        return context->device->prepare(fastnorm::NormHeadsCall{&desc, &plan}, error);
      });
}

fastnorm_status fastnorm_norm_heads(fastnorm_context* context, const fastnorm_norm_heads_args* args,
                                    const fastnorm_norm_heads_part* const* parts, int32_t count,
                                    void* workspace, size_t workspace_bytes, void* stream) {
  static_cast<void>(workspace);
  static_cast<void>(workspace_bytes);
  return fastnorm::with_heads(
      context, args, parts, count,
      [=](const NormHeadsDesc& desc, const NormHeadsPlan& plan, Error& error) -> fastnorm_status {
        FASTNORM_REQUIRE(
            stream == nullptr || context->device->facts.device_type == FASTNORM_DEVICE_CUDA,
            FASTNORM_ERROR_ARGUMENT, "stream is %p and the context is a CPU's; required: NULL",
            stream);
        if (plan.launches == 0) return FASTNORM_OK;
        return context->device->run(fastnorm::NormHeadsCall{&desc, &plan}, workspace, stream,
                                    error);
      });
}
