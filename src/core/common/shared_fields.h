// Checks of fields that several families have with the same name and meaning.
#pragma once

#include <cmath>

#include "core/common/check.h"
#include "core/common/enum_check.h"
#include "core/common/field_rules.h"
#include "fastnorm/norm.h"

namespace fastnorm {

FASTNORM_HOT fastnorm_status check_finite(const char* name, float value, Error& error) {
  FASTNORM_REQUIRE(std::isfinite(value), FASTNORM_ERROR_ARGUMENT, "%s is %g; required: finite",
                   name, static_cast<double>(value));
  return FASTNORM_OK;
}

FASTNORM_HOT fastnorm_status check_eps(const char* name, float value, Error& error) {
  FASTNORM_REQUIRE(std::isfinite(value) && value >= 0, FASTNORM_ERROR_ARGUMENT,
                   "%s is %g; required: finite and >= 0", name, static_cast<double>(value));
  return FASTNORM_OK;
}

inline fastnorm_status check_amax_floor(const char* name, float floor, Error& error) {
  FASTNORM_REQUIRE(floor == 0 || (floor >= 0x1p-100f && floor <= 0x1p100f), FASTNORM_ERROR_ARGUMENT,
                   "%s is %g; required: 0, or 2^-100 to 2^100", name, static_cast<double>(floor));
  return FASTNORM_OK;
}

inline fastnorm_status check_switch(const char* name, int32_t value, Error& error) {
  FASTNORM_REQUIRE(value == 0 || value == 1, FASTNORM_ERROR_ARGUMENT, "%s is %d; required: 0 or 1",
                   name, value);
  return FASTNORM_OK;
}

inline fastnorm_status check_reserved(const char* name, int32_t value, Error& error) {
  FASTNORM_REQUIRE(value == 0, FASTNORM_ERROR_ARGUMENT, "%s is %d; required: 0", name, value);
  return FASTNORM_OK;
}

FASTNORM_HOT fastnorm_status check_flags(const char* name, uint32_t flags, uint32_t known,
                                         Error& error) {
  FASTNORM_REQUIRE((flags & ~known) == 0, FASTNORM_ERROR_UNSUPPORTED,
                   "%s is 0x%x; this version has the flags 0x%x; nearest: flags 0x%x", name, flags,
                   known, flags & known);
  return FASTNORM_OK;
}

// kind, eps and weight_offset.
template <typename Args>
FASTNORM_HOT fastnorm_status check_norm_scalars(const Args& args, Error& error) {
  FASTNORM_TRY(check_enum<&Args::kind>(args, error));
  FASTNORM_TRY(check_eps("eps", args.eps, error));
  return check_finite("weight_offset", args.weight_offset, error);
}

// The enums of a gate.
template <typename Args>
fastnorm_status check_gate_scalars(const Args& args, Error& error) {
  FASTNORM_TRY(check_enum<&Args::gate_act>(args, error));
  FASTNORM_TRY(check_enum<&Args::gate_position>(args, error));
  return check_enum<&Args::gate_source>(args, error);
}

// The scalars of the norm of a branch.
template <typename Args>
fastnorm_status check_branch_scalars(const Args& args, Error& error) {
  FASTNORM_TRY(check_switch("branch_norm", args.branch_norm, error));
  FASTNORM_TRY(check_switch("branch_rounded", args.branch_rounded, error));
  FASTNORM_TRY(check_enum<&Args::branch_kind>(args, error));
  FASTNORM_TRY(check_enum<&Args::branch_rounding>(args, error));
  FASTNORM_TRY(check_enum<&Args::residual_gate_act>(args, error));
  FASTNORM_TRY(check_eps("branch_eps", args.branch_eps, error));
  FASTNORM_TRY(check_finite("branch_weight_offset", args.branch_weight_offset, error));
  return check_finite("alpha", args.alpha, error);
}

}  // namespace fastnorm
