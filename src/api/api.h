// What the API's files share: the context, and how an entry point begins and ends.
#pragma once

#include <memory>
#include <new>

#include "core/backend.h"
#include "core/check.h"
#include "core/norm_index.h"
#include "core/norm_tuning.h"
#include "fastnorm/context.h"

struct fastnorm_context {
  std::unique_ptr<fastnorm::Device> device;
  std::unique_ptr<const fastnorm::NormTuning> norm_tuning;  // null: none
  std::unique_ptr<const fastnorm::NormIndex> norm_index;    // of the device's table
};

namespace fastnorm {

// The calling thread's last error.
Error& thread_error();

// Runs the body of an entry point with the thread's error; nothing thrown inside crosses the ABI.
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

}  // namespace fastnorm
