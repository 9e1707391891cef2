// Which tensors of a norm_heads call may share memory.
#pragma once

#include "core/common/error.h"
#include "core/norm_heads/desc.h"

namespace fastnorm {

// Checks that no output shares a byte with another tensor or with itself. Only y may be its own x.
// check_norm_part() has compared the tensors that a part has in common with a norm. The call has
// tokens and parts.
fastnorm_status check_norm_heads_aliasing(const fastnorm_norm_heads_args& args,
                                          const NormHeadsDesc& desc, Error& error);

}  // namespace fastnorm
