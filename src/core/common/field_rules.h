// Rules between the fields of a call: columns "needs" and "excludes" of fields.csv. The compiler
// runs the loops, so that a call asks no more than a list by hand would ask.
#pragma once

#include <cstring>
#include <iterator>
#include <utility>

#include "core/common/check.h"
#include "core/common/schema.h"

namespace fastnorm {

// accept_struct() of a struct in the table, which says how long its first version was.
template <typename Struct>
fastnorm_status accept_call(const Struct* theirs, const char* name, Struct* local,
                            const Struct** ours, Error& error) {
  return accept_struct(theirs, schema::Fields<Struct>::kFirstSize, name, local, ours, error);
}

// The value of a number or an enum in memory that may have no alignment.
template <class T>
FASTNORM_HOT T value_at(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Whether a field is not neutral: a pointer is not NULL, a number is not 0.
template <schema::Kind kind>
FASTNORM_HOT bool is_given(const std::byte* at) {
  using schema::Kind;
  if constexpr (kind == Kind::kFloat) {
    return value_at<float>(at) != 0;
  } else if constexpr (kind == Kind::kTensor || kind == Kind::kStruct) {
    return value_at<const void*>(at) != nullptr;
  } else if constexpr (kind == Kind::kInt64) {
    return value_at<int64_t>(at) != 0;
  } else {
    static_assert(kind == Kind::kEnum || kind == Kind::kInt32 || kind == Kind::kUint32);
    return value_at<uint32_t>(at) != 0;
  }
}

template <schema::Op op, schema::Kind kind>
FASTNORM_HOT bool holds(const std::byte* at, uint32_t value) {
  if constexpr (op == schema::Op::kIs) return value_at<uint32_t>(at) == value;
  if constexpr (op == schema::Op::kHas) return (value_at<uint32_t>(at) & value) != 0;
  return is_given<kind>(at);
}

// Whether f.operator()<0>() to <count - 1> return true. Later ones are not called after a false.
template <size_t count, class F>
FASTNORM_HOT bool all_numbers(const F& f) {
  return [&]<size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) {
    return (f.template operator()<i>() && ...);
  }
  (std::make_index_sequence<count>());
}

// Fails with the status: field number `field` of the struct at `s` breaks its rule.
fastnorm_status refuse_field(const schema::Field* fields, size_t field, const schema::Rule& rule,
                             const std::byte* s, fastnorm_status status, Error& error);

// Refuses the first of the fields from number `first` on that is given beside what it excludes,
// which fails with the status `excluded`, or without what it needs. Enums have valid values.
template <class Struct, size_t first = 0, size_t end = std::size(schema::Fields<Struct>::kAll)>
FASTNORM_HOT fastnorm_status check_rules(const Struct& s, Error& error,
                                         fastnorm_status excluded = FASTNORM_ERROR_ARGUMENT) {
  constexpr auto& kAll = schema::Fields<Struct>::kAll;
  const auto* const bytes = reinterpret_cast<const std::byte*>(&s);
  size_t broken = end, number = 0;
  all_numbers<end - first>([&]<size_t n>() __attribute__((always_inline)) {
    constexpr schema::Field f = kAll[first + n];
    // A struct may be given with neutral fields alone, which means nothing.
    if constexpr (!f.has_rules() || f.kind == schema::Kind::kStruct) {
      return true;
    } else {
      if (!is_given<f.kind>(bytes + f.offset)) return true;
      return all_numbers<schema::kRules>([&]<size_t r>() __attribute__((always_inline)) {
        constexpr schema::Rule rule = f.rule(r);
        if constexpr (rule.one_of.terms[0].field == schema::kNoField) {
          return true;
        } else {
          const bool none =
              all_numbers<std::size(rule.one_of.terms)>([&]<size_t t>() __attribute__((
                  always_inline)) {
                constexpr schema::Term term = rule.one_of.terms[t];
                if constexpr (term.field == schema::kNoField) {
                  return true;
                } else {
                  constexpr schema::Field of = kAll[term.field];
                  return !holds<term.op, of.kind>(bytes + of.offset, term.value);
                }
              });
          if (none != rule.needed) return true;
          broken = first + n, number = r;
          return false;
        }
      });
    }
  });
  if (__builtin_expect(broken == end, 1)) return FASTNORM_OK;
  const schema::Rule rule = kAll[broken].rule(number);
  return refuse_field(kAll, broken, rule, bytes, rule.needed ? FASTNORM_ERROR_ARGUMENT : excluded,
                      error);
}

}  // namespace fastnorm
