// The MLA decode family at the ABI: check, plan, run; and profiles.
#include "fastnorm/mla_decode.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "api/api.h"
#include "core/common/pdl.h"
#include "core/mla_decode/check.h"
#include "core/mla_decode/plan.h"
#include "core/mla_decode/trace.h"

namespace fastnorm {
namespace {

struct Call {
  MlaDecodeDesc desc;
  MlaDecodePlan plan;
};

fastnorm_status plan(const fastnorm_context* context, const fastnorm_mla_decode_args* args,
                     Call* call, Error& error) {
  FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "context is NULL; required: a context");
  const DeviceFacts& facts = context->device->facts;
  FASTNORM_TRY(check_mla_decode(args, {facts.device_type, facts.device_id}, &call->desc, error));
  call->desc.pdl = with_pdl(call->desc.pdl, facts.pdl);
  return plan_mla_decode(call->desc, facts, &call->plan, error);
}

fastnorm_status describe(const Call& call, const DeviceFacts& facts, fastnorm_info* info,
                         Error& error) {
  FASTNORM_TRY(check_info(info, error));
  const MlaDecodePlan& plan = call.plan;
  const bool cuda = facts.device_type == FASTNORM_DEVICE_CUDA;
  fastnorm_info result = {};
  result.kind = result.choice = result.variant = "";
  result.kernel = plan.kernel;
  result.workspace_bytes = plan.workspace_bytes;
  result.bytes_read = plan.bytes_read;
  result.bytes_written = plan.bytes_written;
  result.launches = plan.launches;
  result.blocks = plan.blocks;
  result.profile_bytes = plan.profile_bytes;
  if (plan.launches != 0) {
    result.threads_per_row = cuda ? kMlaGroups * 128 : 1;
    result.rows_per_block = cuda ? kMlaTileRows : 1;
    result.blocks_per_row = cuda ? plan.parts : 1;
    result.vector_bytes = cuda ? 16 : facts.vector_bytes;
  }
  give_struct(result, info);
  return FASTNORM_OK;
}

fastnorm_status run(fastnorm_context& context, const Call& call, void* workspace,
                    size_t workspace_bytes, void* stream, Error& error) {
  const MlaDecodePlan& plan = call.plan;
  FASTNORM_TRY(
      check_workspace(context, {workspace, workspace_bytes, stream}, plan.workspace_bytes, error));
  FASTNORM_REQUIRE(plan.profile_bytes == 0 || call.desc.profile != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "profile is NULL and profile_events is %d; required: a tensor of %" PRIu64
                   " bytes, or profile_events 0",
                   call.desc.profile_events, plan.profile_bytes);
  if (plan.launches == 0) return FASTNORM_OK;
  return context.device->run(MlaDecodeCall{&call.desc, &plan}, workspace, stream, error);
}

fastnorm_status decode(const void* buffer, size_t bytes, fastnorm_profile_event* events,
                       size_t capacity, size_t* count, Error& error) {
  FASTNORM_REQUIRE(count != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "count is NULL; required: a pointer to receive the number");
  FASTNORM_REQUIRE(events != nullptr || capacity == 0, FASTNORM_ERROR_ARGUMENT,
                   "events is NULL and capacity is %zu; required: room for so many", capacity);
  Profile profile;
  FASTNORM_TRY(Profile::open(buffer, bytes, &profile, error));
  *count = profile.events();
  if (capacity == 0) return FASTNORM_OK;
  const std::vector<fastnorm_profile_event> all = profile.decode();
  std::copy_n(all.begin(), std::min(capacity, all.size()), events);
  return FASTNORM_OK;
}

// Writes the whole file, or reports why not.
fastnorm_status write_file(const char* path, const std::string& text, Error& error) {
  std::FILE* file = std::fopen(path, "wbe");
  bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int reason = errno;
  if (file != nullptr && std::fclose(file) != 0) {
    written = false;
    reason = errno;
  }
  FASTNORM_REQUIRE(written, FASTNORM_ERROR_ARGUMENT,
                   "path is \"%.200s\", which cannot be written (%s); required: a file to write",
                   path, std::strerror(reason));
  return FASTNORM_OK;
}

fastnorm_status write_trace(const void* buffer, size_t bytes, const char* path,
                            fastnorm_trace_format format, Error& error) {
  int32_t number = 0;
  std::memcpy(&number, &format, sizeof number);
  FASTNORM_REQUIRE(path != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "path is NULL; required: the file to write");
  FASTNORM_REQUIRE(number == FASTNORM_TRACE_CHROME_JSON, FASTNORM_ERROR_ARGUMENT,
                   "format is %d; required: FASTNORM_TRACE_CHROME_JSON (0)", number);
  Profile profile;
  FASTNORM_TRY(Profile::open(buffer, bytes, &profile, error));
  return write_file(path, profile.chrome_json(), error);
}

}  // namespace
}  // namespace fastnorm

using fastnorm::Error;

fastnorm_status fastnorm_mla_decode_query(fastnorm_context* context,
                                          const fastnorm_mla_decode_args* args,
                                          fastnorm_info* info) {
  return fastnorm::guarded([&](Error& error) {
    fastnorm::Call call;
    FASTNORM_TRY(fastnorm::plan(context, args, &call, error));
    return fastnorm::describe(call, context->device->facts, info, error);
  });
}

fastnorm_status fastnorm_mla_decode_prepare(fastnorm_context* context,
                                            const fastnorm_mla_decode_args* args) {
  return fastnorm::guarded([&](Error& error) {
    fastnorm::Call call;
    FASTNORM_TRY(fastnorm::plan(context, args, &call, error));
    if (call.plan.launches == 0) return FASTNORM_OK;
    return context->device->prepare(fastnorm::MlaDecodeCall{&call.desc, &call.plan}, error);
  });
}

fastnorm_status fastnorm_mla_decode(fastnorm_context* context, const fastnorm_mla_decode_args* args,
                                    void* workspace, size_t workspace_bytes, void* stream) {
  return fastnorm::guarded([&](Error& error) {
    fastnorm::Call call;
    FASTNORM_TRY(fastnorm::plan(context, args, &call, error));
    return fastnorm::run(*context, call, workspace, workspace_bytes, stream, error);
  });
}

const char* fastnorm_profile_id_name(fastnorm_profile_id id) {
  int32_t number = 0;
  std::memcpy(&number, &id, sizeof number);
  return fastnorm::profile_id_name(number);
}

fastnorm_status fastnorm_profile_decode(const void* buffer, size_t bytes,
                                        fastnorm_profile_event* events, size_t capacity,
                                        size_t* count) {
  return fastnorm::guarded([&](Error& error) {
    return fastnorm::decode(buffer, bytes, events, capacity, count, error);
  });
}

fastnorm_status fastnorm_profile_write_trace(const void* buffer, size_t bytes, const char* path,
                                             fastnorm_trace_format format) {
  return fastnorm::guarded(
      [&](Error& error) { return fastnorm::write_trace(buffer, bytes, path, format, error); });
}
