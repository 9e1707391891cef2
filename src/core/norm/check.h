// Checks of a norm call's arguments, and their canonical form.
#pragma once

#include "core/common/check.h"
#include "core/norm/aliasing.h"
#include "core/norm/desc.h"
#include "fastnorm/norm.h"

namespace fastnorm {

// Checks one normalisation and describes it. With zero rows, desc->rows is 0 and the rest is
// unspecified.
fastnorm_status check_norm(const fastnorm_norm_args* args, CheckedDevice device, NormDesc* desc,
                           Error& error);

// Checks and describes a call. If it has rows, this also sets `touched` for check_norm_many(). With
// `keeps_order` rows have the order of x's shape. Without it those of a GPU may have another one.
fastnorm_status check_norm(const fastnorm_norm_args* args, CheckedDevice device, NormDesc* desc,
                           Touched* touched, Error& error, bool keeps_order = false);

// Checks and describes a part of another family's call. Its outputs may be elsewhere, so neither y
// nor quantised output is required. x has at most 4 dimensions.
fastnorm_status check_norm_part(const fastnorm_norm_args& args, CheckedDevice device,
                                NormDesc* desc, Error& error);

}  // namespace fastnorm
