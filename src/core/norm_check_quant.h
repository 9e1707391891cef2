// The part of check_norm() that quantised outputs need.
#pragma once

#include "core/check.h"
#include "core/norm_desc.h"
#include "fastnorm/norm.h"

namespace fastnorm {

// Checks the scalars, and which tensors the scheme requires. Describes them in desc->quant.
fastnorm_status check_quant_scalars(const fastnorm_norm_args& args, NormDesc* desc, Error& error);

// Checks codes, scales and the global scale of a call with a scheme. x is described already.
fastnorm_status check_quant_tensors(const fastnorm_norm_args& args, CheckedDevice device,
                                    NormDesc* desc, Error& error);

}  // namespace fastnorm
