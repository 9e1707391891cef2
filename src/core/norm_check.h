// Checks of a norm call's arguments, and their canonical form.
#pragma once

#include "core/check.h"
#include "core/norm_aliasing.h"
#include "core/norm_desc.h"
#include "fastnorm/norm.h"

namespace fastnorm {

// Size of the public struct in version 0.1, through the last field that it had then.
inline constexpr size_t kFirstNormArgs =
    offsetof(fastnorm_norm_args, amax) + sizeof(fastnorm_norm_args::amax);

// Checks one normalisation and describes it. Zero rows leave desc->rows at 0 and the rest unspecified.
fastnorm_status check_norm(const fastnorm_norm_args* args, CheckedDevice device, NormDesc* desc,
                           Error& error);

// The same, and if the call has rows, `touched` for check_norm_many().
fastnorm_status check_norm(const fastnorm_norm_args* args, CheckedDevice device, NormDesc* desc,
                           Touched* touched, Error& error);

// The same for a part of a call of another family, which may have its outputs elsewhere: neither y nor codes are
// required. x has at most 4 dimensions.
fastnorm_status check_norm_part(const fastnorm_norm_args& args, CheckedDevice device,
                                NormDesc* desc, Error& error);

}  // namespace fastnorm
