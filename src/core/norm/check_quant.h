// The part of check_norm() that quantised outputs need.
#pragma once

#include "core/common/field_rules.h"
#include "core/norm/desc.h"
#include "fastnorm/norm.h"

namespace fastnorm {

// The caller's struct in our size; nullptr where there is none. `local` is the memory of a copy.
inline fastnorm_status accept_quant(const fastnorm_quant* theirs, const char* name,
                                    fastnorm_quant* local, const fastnorm_quant** ours,
                                    Error& error) {
  *ours = nullptr;
  return theirs == nullptr ? FASTNORM_OK : accept_call(theirs, name, local, ours, error);
}

// Checks the scalars, and which tensors the scheme requires. Describes them in desc->quant.
fastnorm_status check_quant_scalars(const fastnorm_quant& quant, NormDesc* desc, Error& error);

// Checks a rotation, of which there is something, before blocks of scale_block columns (0 = none).
// `name` is that of the struct. The scheme is checked already.
fastnorm_status check_rotation(const char* name, const fastnorm_quant& quant, int32_t scale_block,
                               Error& error);

// Checks the columns and the signs of a rotation, and describes the signs.
fastnorm_status check_rotation_columns(const char* name, const fastnorm_quant& quant, int64_t n,
                                       CheckedDevice device, QuantDesc* desc, Error& error);

// Checks the numbers in rotation_signs, which must be readable from here.
fastnorm_status check_rotation_signs(const char* name, const QuantDesc& desc, int64_t n,
                                     Error& error);

// Checks codes, scales and the global scale of a call with a scheme. x is described already.
fastnorm_status check_quant_tensors(const fastnorm_quant& quant, const fastnorm_tensor& x,
                                    CheckedDevice device, NormDesc* desc, Error& error);

}  // namespace fastnorm
