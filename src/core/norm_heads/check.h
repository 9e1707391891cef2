// Checks of a norm_heads call's arguments, and their canonical form.
#pragma once

#include "core/common/check.h"
#include "core/common/error.h"
#include "core/norm_heads/desc.h"

namespace fastnorm {

// Checks that read no tensor's memory.
fastnorm_status check_norm_heads(const fastnorm_norm_heads_args* args,
                                 const fastnorm_norm_heads_part* const* parts, int32_t count,
                                 CheckedDevice device, NormHeadsDesc* desc, Error& error);

// Checks what all parts share. `desc` already has the tokens, the count and the dtype. Its parts
// have heads, rope, rope_offset, norm.n and the cache.
fastnorm_status check_norm_heads_shared(const fastnorm_norm_heads_args& args, CheckedDevice device,
                                        NormHeadsDesc* desc, Error& error);

// Checks the positions of `tokens` tokens. They are in host memory and are read.
fastnorm_status check_rope_positions(const RopeTables& tables, int64_t tokens, Error& error);

// Checks slots and positions of a call on the CPU, but no positions of padding. They are in host
// memory and are read.
fastnorm_status check_norm_heads_values(const NormHeadsDesc& desc, Error& error);

// Checks that no output shares a byte with another tensor or with itself. Only y may be its own x.
// check_norm_part() has compared the tensors that a part has in common with a norm. The call has
// tokens and parts.
fastnorm_status check_norm_heads_aliasing(const fastnorm_norm_heads_args& args,
                                          const NormHeadsDesc& desc, Error& error);

}  // namespace fastnorm
