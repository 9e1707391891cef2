// How a failed check reports: a status and one line of text, in memory that the caller owns.
#pragma once

#include <cstdarg>
#include <cstdint>

#include "fastnorm/status.h"

namespace fastnorm {

// Filled where the failure is found. The API keeps one per thread. Nothing here allocates.
struct Error {
  fastnorm_status status = FASTNORM_OK;
  int32_t device_error = 0;  // cudaError_t, or 0
  char text[768] = "";

  // Formats the text after `prefix` (such as "args[2].") and returns the status.
  fastnorm_status set(fastnorm_status status, const char* format, ...)
      __attribute__((cold, format(printf, 3, 4)));

  // Text that set() puts first: empty, or a static string.
  const char* prefix = "";
};

}  // namespace fastnorm
