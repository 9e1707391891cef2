// Checks of a norm_heads_backward call's arguments, and what norm_backward makes of each part.
#pragma once

#include "core/norm_backward/check.h"
#include "core/norm_heads/check.h"
#include "fastnorm/norm_heads_backward.h"

namespace fastnorm {

// A description for each part, as check_norm_backward() gives it.
struct NormHeadsBackwardDesc {
  int64_t tokens = 0;
  int32_t count = 0;
  NormBackwardDesc wholes[kMaxHeadsParts];
};

// Everything that can be told without reading a tensor's memory.
fastnorm_status check_norm_heads_backward(const fastnorm_norm_heads_args* args,
                                          const fastnorm_norm_heads_backward_part* const* parts,
                                          int32_t count, CheckedDevice device,
                                          NormHeadsBackwardDesc* desc, Error& error);

}  // namespace fastnorm
