// What must hold of calls that the library accepted, worked out anew from the public headers: byte
// by byte instead of by strides, and therefore only for small calls.
#pragma once

#include <vector>

#include "fastnorm/fastnorm.h"

namespace fastnorm::fuzz {

// Null, or what one call gets wrong in its numbers, dtypes, shapes or devices. Sees all that the
// library refuses for such reasons.
const char* find_argument_fault(const fastnorm_norm_args& call, int32_t device_type);

// Null, or what an accepted call gets wrong, its memory included. The calls of one
// fastnorm_norm_many together.
const char* find_fault(const std::vector<fastnorm_norm_args>& calls, int32_t device_type);

// True if the calls together are small enough that find_fault looked at their memory too.
bool is_small(const std::vector<fastnorm_norm_args>& calls);

}  // namespace fastnorm::fuzz
