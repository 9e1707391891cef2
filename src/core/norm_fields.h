// Checks of fields that several families have with the same name and meaning.
#pragma once

#include <cinttypes>
#include <cmath>

#include "core/check.h"
#include "fastnorm/norm.h"

namespace fastnorm {

FASTNORM_HOT fastnorm_status check_kind(const char* name, int32_t kind, Error& error) {
  FASTNORM_REQUIRE(
      kind == FASTNORM_NORM_RMS || kind == FASTNORM_NORM_LAYER, FASTNORM_ERROR_ARGUMENT,
      "%s is %d; required: FASTNORM_NORM_RMS (0) or FASTNORM_NORM_LAYER (1)", name, kind);
  return FASTNORM_OK;
}

inline fastnorm_status check_activation(const char* name, int32_t value, Error& error) {
  FASTNORM_REQUIRE(value >= FASTNORM_ACTIVATION_IDENTITY && value <= FASTNORM_ACTIVATION_TANH,
                   FASTNORM_ERROR_ARGUMENT, "%s is %d; required: a fastnorm_activation, 0 to 3",
                   name, value);
  return FASTNORM_OK;
}

FASTNORM_HOT fastnorm_status check_rounding(int32_t rounding, Error& error) {
  FASTNORM_REQUIRE(rounding >= FASTNORM_ROUND_ONCE && rounding <= FASTNORM_ROUND_ONCE_RW,
                   FASTNORM_ERROR_ARGUMENT, "rounding is %d; required: a fastnorm_rounding, 0 to 3",
                   rounding);
  return FASTNORM_OK;
}

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

// kind, eps and weight_offset.
template <typename Args>
FASTNORM_HOT fastnorm_status check_norm_scalars(const Args& args, Error& error) {
  FASTNORM_TRY(check_kind("kind", number(args.kind), error));
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
  const int32_t position = number(args.gate_position), source = number(args.gate_source);
  FASTNORM_REQUIRE(
      position == FASTNORM_GATE_AFTER_NORM || position == FASTNORM_GATE_BEFORE_NORM,
      FASTNORM_ERROR_ARGUMENT,
      "gate_position is %d; required: FASTNORM_GATE_AFTER_NORM (0) or FASTNORM_GATE_BEFORE_NORM "
      "(1)",
      position);
  FASTNORM_REQUIRE(source == FASTNORM_GATE_FROM_F32 || source == FASTNORM_GATE_FROM_ROUNDED,
                   FASTNORM_ERROR_ARGUMENT,
                   "gate_source is %d; required: FASTNORM_GATE_FROM_F32 (0) or "
                   "FASTNORM_GATE_FROM_ROUNDED (1)",
                   source);
  const struct {
    const char* name;
    int32_t value;
  } fields[] = {
      {"gate_act", number(args.gate_act)}, {"gate_position", position}, {"gate_source", source}};
  for (const auto& field : fields) {
    FASTNORM_REQUIRE(field.value == 0 || args.gate != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "%s is %d and gate is NULL; required: 0 without a gate", field.name,
                     field.value);
  }
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

// All fields of the norm of a branch; all are 0 and NULL without one. alpha.
template <typename Args>
fastnorm_status check_branch_scalars(const Args& args, Error& error) {
  const int32_t kind = number(args.branch_kind), rounding = number(args.branch_rounding);
  const struct {
    const char* name;
    int32_t value;
  } flags[] = {{"branch_norm", args.branch_norm}, {"branch_rounded", args.branch_rounded}};
  for (const auto& flag : flags) {
    FASTNORM_REQUIRE(flag.value == 0 || flag.value == 1, FASTNORM_ERROR_ARGUMENT,
                     "%s is %d; required: 0 or 1", flag.name, flag.value);
  }
  FASTNORM_TRY(check_kind("branch_kind", kind, error));
  FASTNORM_REQUIRE(rounding >= FASTNORM_ROUND_ONCE && rounding <= FASTNORM_ROUND_EVERY_STEP,
                   FASTNORM_ERROR_ARGUMENT,
                   "branch_rounding is %d; required: a fastnorm_rounding, 0 to 2", rounding);
  FASTNORM_TRY(check_eps("branch_eps", args.branch_eps, error));
  FASTNORM_TRY(check_finite("branch_weight_offset", args.branch_weight_offset, error));
  FASTNORM_TRY(check_finite("alpha", args.alpha, error));
  FASTNORM_REQUIRE(args.branch_weight != nullptr || args.branch_weight_offset == 0,
                   FASTNORM_ERROR_ARGUMENT,
                   "branch_weight_offset is %g and branch_weight is NULL; required: 0 without a "
                   "weight",
                   static_cast<double>(args.branch_weight_offset));
  const struct {
    const char* name;
    double value;
  } numbers[] = {{"branch_kind", static_cast<double>(kind)},
                 {"branch_eps", static_cast<double>(args.branch_eps)},
                 {"branch_rounding", static_cast<double>(rounding)},
                 {"branch_rounded", static_cast<double>(args.branch_rounded)}};
  for (const auto& field : numbers) {
    FASTNORM_REQUIRE(field.value == 0 || args.branch_norm != 0, FASTNORM_ERROR_ARGUMENT,
                     "%s is %g and branch_norm is 0; required: 0 without a branch norm", field.name,
                     field.value);
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm
