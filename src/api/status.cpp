#include "fastnorm/status.h"

#include "api/api.h"

namespace fastnorm {

Error& thread_error() {
  static thread_local Error error;
  return error;
}

}  // namespace fastnorm

const char* fastnorm_status_name(fastnorm_status status) {
  switch (status) {
#define FASTNORM_STATUS_NAME(name, value, text) \
  case FASTNORM_##name:                         \
    return "FASTNORM_" #name;
    FASTNORM_STATUS_MAP(FASTNORM_STATUS_NAME)
#undef FASTNORM_STATUS_NAME
    case FASTNORM_STATUS_MAX_ENUM:
      break;
  }
  return "unknown status";
}

const char* fastnorm_last_error(void) { return fastnorm::thread_error().text; }

int32_t fastnorm_last_device_error(void) { return fastnorm::thread_error().device_error; }
