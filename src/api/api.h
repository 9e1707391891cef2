// What the files of the API share: the context, and how an entry point begins and ends.
#pragma once

#include <cinttypes>
#include <memory>
#include <new>

#include "core/backend.h"
#include "core/common/check.h"
#include "core/norm/batch.h"
#include "core/norm/index.h"
#include "core/tuning.h"
#include "fastnorm/context.h"

struct fastnorm_context {
  std::unique_ptr<fastnorm::Device> device;
  std::unique_ptr<const fastnorm::Tuning> tuning;         // null: none
  std::unique_ptr<const fastnorm::NormIndex> norm_index;  // of the device's table

  const fastnorm::NormTuning* norm_tuning() const {
    return tuning != nullptr ? &tuning->norm : nullptr;
  }
  const fastnorm::NormBackwardTuning* norm_backward_tuning() const {
    return tuning != nullptr ? &tuning->norm_backward : nullptr;
  }
};

namespace fastnorm {

// The calling thread's last error.
Error& thread_error();

// Runs the body of an entry point with the thread's error. No exception crosses the ABI.
template <typename Body>
fastnorm_status guarded(Body body) noexcept {
  Error& error = thread_error();
  error.prefix = "";
  try {
    return body(error);
  } catch (const std::bad_alloc&) {
    return error.set(FASTNORM_ERROR_OUT_OF_MEMORY, "host memory ran out");
  } catch (...) {
    return error.set(FASTNORM_ERROR_INTERNAL, "an exception reached the API");
  }
}

inline fastnorm_status check_info(const fastnorm_info* info, Error& error) {
  FASTNORM_REQUIRE(info != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "info is NULL; required: a fastnorm_info");
  FASTNORM_REQUIRE(info->struct_size >= kFirstInfo, FASTNORM_ERROR_ARGUMENT,
                   "info.struct_size is %zu; required: at least %zu", info->struct_size,
                   kFirstInfo);
  return FASTNORM_OK;
}

// What a query reports of planned calls of the norm.
inline fastnorm_info norm_info(const fastnorm_context& context, std::span<const NormCall> calls,
                               uint64_t workspace_bytes) {
  const Device& device = *context.device;
  return batch_info(device.facts, calls, workspace_bytes,
                    calls.empty() ? "" : device.variant_text(calls.front()));
}

// A call's memory and stream.
struct Workspace {
  void* data;
  size_t bytes;
  void* stream;
};

FASTNORM_HOT fastnorm_status check_workspace(const fastnorm_context& context, const Workspace& w,
                                             uint64_t needed, Error& error) {
  FASTNORM_REQUIRE(w.bytes >= needed, FASTNORM_ERROR_ARGUMENT,
                   "workspace_bytes is %zu; required: at least %" PRIu64, w.bytes, needed);
  FASTNORM_REQUIRE(
      needed == 0 || (w.data != nullptr && reinterpret_cast<uintptr_t>(w.data) % 256 == 0),
      FASTNORM_ERROR_ARGUMENT, "workspace is %p; required: a 256-byte aligned address", w.data);
  FASTNORM_REQUIRE(w.stream == nullptr || context.device->facts.device_type == FASTNORM_DEVICE_CUDA,
                   FASTNORM_ERROR_ARGUMENT,
                   "stream is %p and the context is a CPU's; required: NULL", w.stream);
  return FASTNORM_OK;
}

}  // namespace fastnorm
