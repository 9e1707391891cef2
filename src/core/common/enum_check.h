// Checks that fields hold values of their enums. Names, values and texts are those of the headers.
#pragma once

#include <iterator>
#include <span>

#include "core/common/check.h"
#include "core/common/schema.h"

namespace fastnorm {

// Fails: `value` is none of these of the enum `type`.
fastnorm_status refuse_value(const char* name, int32_t value, const char* type,
                             std::span<const schema::Enumerator> allowed, Error& error);

// Values from 0 to `most` are allowed.
template <class E, uint32_t most = std::size(schema::Enum<E>::kAll) - 1>
FASTNORM_HOT fastnorm_status check_value(const char* name, int32_t value, Error& error) {
  static_assert(schema::counts_up<E>);
  if (__builtin_expect(static_cast<uint32_t>(value) <= most, 1)) return FASTNORM_OK;
  using Values = schema::Enum<E>;
  return refuse_value(name, value, Values::kName, std::span(Values::kAll).first(most + 1), error);
}

// The values that the table allows: check_enum<&fastnorm_norm_args::rounding>(args, error).
template <auto member>
FASTNORM_HOT fastnorm_status check_enum(const schema::StructOf<member>& args, Error& error,
                                        const char* name = schema::field<member>.path) {
  return check_value<schema::TypeOf<member>, schema::most_of<member>>(name, number(args.*member),
                                                                      error);
}

}  // namespace fastnorm
