// Checks of an MLA decode call's arguments, and their canonical form.
#pragma once

#include <cstddef>

#include "core/check.h"
#include "core/error.h"
#include "core/mla_decode_desc.h"

namespace fastnorm {

// Size of the public struct in version 0.2, through the last field that it had then.
inline constexpr size_t kFirstMlaDecodeArgs =
    offsetof(fastnorm_mla_decode_args, profile) + sizeof(fastnorm_mla_decode_args::profile);

// Everything that can be told without reading a tensor's memory.
fastnorm_status check_mla_decode(const fastnorm_mla_decode_args* args, CheckedDevice device,
                                 MlaDecodeDesc* desc, Error& error);

// Lengths, indices and page numbers that a call on the CPU will use, in memory of the host. Reads them.
fastnorm_status check_mla_decode_values(const MlaDecodeDesc& desc, Error& error);

}  // namespace fastnorm
