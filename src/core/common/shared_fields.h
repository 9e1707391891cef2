// Checks of fields that several families have with the same name and meaning.
#pragma once

#include <cinttypes>
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

// kind, eps and weight_offset.
template <typename Args>
FASTNORM_HOT fastnorm_status check_norm_scalars(const Args& args, Error& error) {
  FASTNORM_TRY(check_enum<&Args::kind>(args, error));
  FASTNORM_TRY(check_eps("eps", args.eps, error));
  return check_finite("weight_offset", args.weight_offset, error);
}

template <typename Args>
FASTNORM_HOT fastnorm_status check_offset_of_weight(const Args& args, Error& error) {
  FASTNORM_REQUIRE(args.weight != nullptr || args.weight_offset == 0, FASTNORM_ERROR_ARGUMENT,
                   "weight_offset is %g and weight is NULL; required: 0 without a weight",
                   static_cast<double>(args.weight_offset));
  return FASTNORM_OK;
}

// gate_position and gate_source; all fields of a gate are 0 without one.
template <typename Args>
fastnorm_status check_gate_scalars(const Args& args, Error& error) {
  FASTNORM_TRY(check_enum<&Args::gate_position>(args, error));
  FASTNORM_TRY(check_enum<&Args::gate_source>(args, error));
  if (args.gate != nullptr) return FASTNORM_OK;
  const FoundScalar field = scalar_that_needs<&Args::gate>(args);
  FASTNORM_REQUIRE(field.name == nullptr, FASTNORM_ERROR_ARGUMENT,
                   "%s is %d and gate is NULL; required: 0 without a gate", field.name,
                   static_cast<int32_t>(field.value));
  return FASTNORM_OK;
}

template <typename Args>
fastnorm_status check_source_of_gate(const Args& args, Error& error) {
  FASTNORM_REQUIRE(number(args.gate_source) == FASTNORM_GATE_FROM_F32 ||
                       number(args.gate_position) == FASTNORM_GATE_AFTER_NORM,
                   FASTNORM_ERROR_ARGUMENT,
                   "gate_source is FASTNORM_GATE_FROM_ROUNDED (1) and gate_position is %d; "
                   "required: FASTNORM_GATE_AFTER_NORM (0)",
                   number(args.gate_position));
  return FASTNORM_OK;
}

// All scalars of the norm of a branch; all are 0 without one. alpha goes with a flag.
template <typename Args>
fastnorm_status check_branch_scalars(const Args& args, const char* alpha_name, uint32_t alpha_flag,
                                     Error& error) {
  const struct {
    const char* name;
    int32_t value;
  } flags[] = {{"branch_norm", args.branch_norm}, {"branch_rounded", args.branch_rounded}};
  for (const auto& flag : flags) {
    FASTNORM_REQUIRE(flag.value == 0 || flag.value == 1, FASTNORM_ERROR_ARGUMENT,
                     "%s is %d; required: 0 or 1", flag.name, flag.value);
  }
  FASTNORM_TRY(check_enum<&Args::branch_kind>(args, error));
  FASTNORM_TRY(check_enum<&Args::branch_rounding>(args, error));
  FASTNORM_TRY(check_eps("branch_eps", args.branch_eps, error));
  FASTNORM_TRY(check_finite("branch_weight_offset", args.branch_weight_offset, error));
  FASTNORM_TRY(check_finite("alpha", args.alpha, error));
  FASTNORM_REQUIRE(args.alpha == 0 || (args.flags & alpha_flag) != 0, FASTNORM_ERROR_ARGUMENT,
                   "alpha is %g and flags is 0x%x; required: %s (%u) with alpha",
                   static_cast<double>(args.alpha), args.flags, alpha_name, alpha_flag);
  FASTNORM_REQUIRE(args.branch_weight != nullptr || args.branch_weight_offset == 0,
                   FASTNORM_ERROR_ARGUMENT,
                   "branch_weight_offset is %g and branch_weight is NULL; required: 0 without a "
                   "weight",
                   static_cast<double>(args.branch_weight_offset));
  if (args.branch_norm != 0) return FASTNORM_OK;
  const FoundScalar field = scalar_that_needs<&Args::branch_norm>(args);
  FASTNORM_REQUIRE(field.name == nullptr, FASTNORM_ERROR_ARGUMENT,
                   "%s is %g and branch_norm is 0; required: 0 without a branch norm", field.name,
                   field.value);
  return FASTNORM_OK;
}

// The tensors that need it.
template <typename Args>
fastnorm_status check_branch_tensors(const Args& args, Error& error) {
  if (args.branch_norm != 0) return FASTNORM_OK;
  const char* const name = tensor_that_needs<&Args::branch_norm>(args);
  FASTNORM_REQUIRE(name == nullptr, FASTNORM_ERROR_ARGUMENT,
                   "%s is given and branch_norm is 0; required: NULL without a branch norm", name);
  return FASTNORM_OK;
}

}  // namespace fastnorm
