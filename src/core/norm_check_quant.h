// The part of check_norm() that quantised outputs need.
#pragma once

#include "core/check.h"
#include "core/norm_desc.h"
#include "fastnorm/norm.h"

namespace fastnorm {

inline constexpr size_t kFirstQuant = offsetof(fastnorm_quant, amax) + sizeof(fastnorm_quant::amax);

// The caller's struct in our size; nullptr where there is none. `local` is the memory of a copy.
inline fastnorm_status accept_quant(const fastnorm_quant* theirs, const char* name,
                                    fastnorm_quant* local, const fastnorm_quant** ours,
                                    Error& error) {
  *ours = nullptr;
  return theirs == nullptr ? FASTNORM_OK
                           : accept_struct(theirs, kFirstQuant, name, local, ours, error);
}

// Checks the scalars, and which tensors the scheme requires. Describes them in desc->quant.
fastnorm_status check_quant_scalars(const fastnorm_quant& quant, NormDesc* desc, Error& error);

// Checks codes, scales and the global scale of a call with a scheme. x is described already.
fastnorm_status check_quant_tensors(const fastnorm_quant& quant, const fastnorm_tensor& x,
                                    CheckedDevice device, NormDesc* desc, Error& error);

}  // namespace fastnorm
