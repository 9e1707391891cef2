// Checks of a norm_heads call's arguments, and their canonical form.
#pragma once

#include <cstddef>

#include "core/check.h"
#include "core/error.h"
#include "core/norm_heads_desc.h"

namespace fastnorm {

// Sizes of the public structs in version 0.2, through the last field that they had then.
inline constexpr size_t kFirstNormHeadsArgs =
    offsetof(fastnorm_norm_heads_args, slots) + sizeof(fastnorm_norm_heads_args::slots);
inline constexpr size_t kFirstNormHeadsPart =
    offsetof(fastnorm_norm_heads_part, cache_scale) + sizeof(fastnorm_norm_heads_part::cache_scale);

// Everything that can be told without reading a tensor's memory.
fastnorm_status check_norm_heads(const fastnorm_norm_heads_args* args,
                                 const fastnorm_norm_heads_part* const* parts, int32_t count,
                                 CheckedDevice device, NormHeadsDesc* desc, Error& error);

// What all parts share. `desc` has the tokens, the count, the dtype and of each part heads, rope,
// rope_offset, norm.n and the cache.
fastnorm_status check_norm_heads_shared(const fastnorm_norm_heads_args& args, CheckedDevice device,
                                        NormHeadsDesc* desc, Error& error);

// Positions of so many tokens, in memory of the host. Reads them.
fastnorm_status check_rope_positions(const RopeTables& tables, int64_t tokens, Error& error);

// Positions and slots that a call on the CPU will use, in memory of the host. Reads them.
fastnorm_status check_norm_heads_values(const NormHeadsDesc& desc, Error& error);

}  // namespace fastnorm
