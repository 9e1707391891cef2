// Checks of an MLA decode call's arguments, and their canonical form.
#pragma once

#include <cstddef>

#include "core/common/check.h"
#include "core/common/error.h"
#include "core/mla_decode/desc.h"

namespace fastnorm {

// Size of the public struct in version 0.2, through its last field.
inline constexpr size_t kFirstMlaDecodeArgs =
    offsetof(fastnorm_mla_decode_args, extra_topk_length) +
    sizeof(fastnorm_mla_decode_args::extra_topk_length);

// Checks that read no tensor's memory.
fastnorm_status check_mla_decode(const fastnorm_mla_decode_args* args, CheckedDevice device,
                                 MlaDecodeDesc* desc, Error& error);

// Checks lengths, indices and page numbers of a call on the CPU. They are in host memory and are
// read.
fastnorm_status check_mla_decode_values(const MlaDecodeDesc& desc, Error& error);

}  // namespace fastnorm
