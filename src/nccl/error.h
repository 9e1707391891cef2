// Errors of libfastnorm_nccl: a status, and this thread's text.
#pragma once

#include <new>
#include <string>

#include "fastnorm/status.h"

// Leaves the function with a failed status of `expression`, whose text is set.
#define NCCL_TRY(expression)                                                                     \
  do {                                                                                           \
    if (const fastnorm_status nccl_try = (expression); nccl_try != FASTNORM_OK) return nccl_try; \
  } while (0)
#define NCCL_REQUIRE(condition, status, ...)                                \
  do {                                                                      \
    if (!(condition)) return ::fastnorm::nccl::fail((status), __VA_ARGS__); \
  } while (0)

namespace fastnorm::nccl {

std::string& last_error();

[[gnu::format(printf, 2, 3)]] fastnorm_status fail(fastnorm_status status, const char* format, ...);

// A failure of libfastnorm: its text is ours.
fastnorm_status of_library(fastnorm_status status);

// A failure where an exception arrived.
fastnorm_status fail_caught(fastnorm_status status, const char* text) noexcept;

// No exception leaves a function of the ABI.
template <typename Body>
fastnorm_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail_caught(FASTNORM_ERROR_OUT_OF_MEMORY, "host memory ran out");
  } catch (...) {
    return fail_caught(FASTNORM_ERROR_INTERNAL, "an exception reached the API");
  }
}

}  // namespace fastnorm::nccl
