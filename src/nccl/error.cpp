#include "nccl/error.h"

#include <cstdarg>
#include <cstdio>

namespace fastnorm::nccl {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

fastnorm_status fail(fastnorm_status status, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  last_error() = text;
  return status;
}

fastnorm_status fail_caught(fastnorm_status status, const char* text) noexcept {
  try {
    last_error() = text;
  } catch (...) {
    last_error().clear();  // rather than the text of an older failure
  }
  return status;
}

fastnorm_status of_library(fastnorm_status status) {
  if (status != FASTNORM_OK) last_error() = fastnorm_last_error();
  return status;
}

}  // namespace fastnorm::nccl
