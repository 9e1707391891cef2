// Checks of an MLA decode call's arguments, and their canonical form.
#pragma once

#include "core/common/check.h"
#include "core/common/error.h"
#include "core/mla_decode/desc.h"

namespace fastnorm {

// Checks that read no tensor's memory.
fastnorm_status check_mla_decode(const fastnorm_mla_decode_args* args, CheckedDevice device,
                                 MlaDecodeDesc* desc, Error& error);

// Checks lengths, indices and page numbers of a call on the CPU. They are in host memory and are
// read.
fastnorm_status check_mla_decode_values(const MlaDecodeDesc& desc, Error& error);

}  // namespace fastnorm
