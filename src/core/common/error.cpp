#include "core/common/error.h"

#include <cstdio>

namespace fastnorm {

fastnorm_status Error::set(fastnorm_status new_status, const char* format, ...) {
  status = new_status;
  device_error = 0;
  const int used = std::snprintf(text, sizeof text, "%s", prefix);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text + used, sizeof text - static_cast<size_t>(used), format, arguments);
  va_end(arguments);
  return new_status;
}

}  // namespace fastnorm
