// What a norm_heads call launches and moves. Pure functions of their arguments.
#pragma once

#include <cstdint>

#include "core/error.h"
#include "core/norm_heads_desc.h"
#include "core/norm_plan.h"

namespace fastnorm {

struct NormHeadsPlan {
  const char* kernel = "";  // "" = nothing to do
  int32_t launches = 0;
  int64_t grain = 1;    // CPU: tokens that are worth another thread
  uint64_t blocks = 0;  // CPU: ranges at the most
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
};

// Fails with FASTNORM_ERROR_UNSUPPORTED where the device has no kernel.
fastnorm_status plan_norm_heads(const NormHeadsDesc& desc, const DeviceFacts& facts,
                                NormHeadsPlan* plan, Error& error);

}  // namespace fastnorm
