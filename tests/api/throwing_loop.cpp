#include <stdexcept>

#include "api/api_test.h"

void throwing_loop(void*, int64_t, int64_t, fastnorm_range_fn, void*) {
  throw std::runtime_error("thrown by the test's loop");
}
