// Rules between fields that the columns "needs" and "excludes" of fields.csv hold. The compiler
// runs the loops, so that a call asks no more than a list by hand would ask.
#pragma once

#include <cstring>
#include <iterator>
#include <utility>

#include "core/common/check.h"
#include "core/common/schema.h"

namespace fastnorm {

// The value of a scalar of four bytes.
template <schema::Kind kind>
FASTNORM_HOT double scalar_at(const std::byte* at) {
  if constexpr (kind == schema::Kind::kFloat) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return static_cast<double>(value);
  } else {
    static_assert(kind == schema::Kind::kEnum || kind == schema::Kind::kInt32);
    int32_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
}

// Calls f<field>(address) for each field of a struct.
template <class Struct, class F>
FASTNORM_HOT void for_each_field(const Struct& s, const F& f) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&s);
  [&]<size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) {
    (f.template operator()<i>(bytes + schema::Fields<Struct>::kAll[i].offset), ...);
  }
  (std::make_index_sequence<std::size(schema::Fields<Struct>::kAll)>());
}

struct FoundScalar {
  const char* name = nullptr;  // nullptr: none
  double value = 0;
};

// The first scalar that is not 0 among those that need a field, or a flag of it.
template <auto needed, uint32_t flag = 0>
FASTNORM_HOT FoundScalar scalar_that_needs(const schema::StructOf<needed>& s) {
  FoundScalar found;
  for_each_field(
      s, [&]<size_t i>(const std::byte* at) __attribute__((always_inline)) {
        constexpr schema::Field f = schema::Fields<schema::StructOf<needed>>::kAll[i];
        if constexpr (f.needs_field(schema::kNumber<needed>, flag) && !is_tensor(f.role)) {
          const double value = scalar_at<f.kind>(at);
          if (found.name == nullptr && value != 0) found = {f.name, value};
        }
      });
  return found;
}

// The first tensor that is given among those that a rule is about.
template <class Struct, class Rule>
FASTNORM_HOT const char* tensor_with(const Struct& s, Rule) {
  const char* found = nullptr;
  for_each_field(
      s, [&]<size_t i>(const std::byte* at) __attribute__((always_inline)) {
        constexpr schema::Field f = schema::Fields<Struct>::kAll[i];
        if constexpr (is_tensor(f.role) && Rule()(f)) {
          const fastnorm_tensor* tensor;
          std::memcpy(&tensor, at, sizeof tensor);
          if (found == nullptr && tensor != nullptr) found = f.name;
        }
      });
  return found;
}

template <auto needed, uint32_t flag = 0>
FASTNORM_HOT const char* tensor_that_needs(const schema::StructOf<needed>& s) {
  return tensor_with(
      s, [](const schema::Field& f) { return f.needs_field(schema::kNumber<needed>, flag); });
}

template <auto excluded>
FASTNORM_HOT const char* tensor_that_excludes(const schema::StructOf<excluded>& s) {
  return tensor_with(
      s, [](const schema::Field& f) { return f.excludes_field(schema::kNumber<excluded>); });
}

}  // namespace fastnorm
