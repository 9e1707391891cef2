// What src/schema/fields.csv says about the fields of calls, and the enums of the public headers,
// as constexpr data. A field that the headers do not have, or that the table lacks, is an error of
// the compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <tuple>
#include <type_traits>

#include "fastnorm/fastnorm.h"

namespace fastnorm::schema {

enum class Role : uint8_t;   // of fields.csv
enum class Shape : uint8_t;  // the same

enum class Kind : uint8_t {
  kTensor,   // const fastnorm_tensor*
  kStruct,   // const pointer to a struct with a struct_size
  kPointer,  // a handle, or what is passed on
  kEnum,
  kFloat,
  kDouble,
  kInt32,
  kUint32,
  kInt64,
  kSize,
};

template <class T>
consteval Kind kind_of() {
  using To = std::remove_pointer_t<T>;
  if (std::is_same_v<T, const fastnorm_tensor*>) return Kind::kTensor;
  if (std::is_pointer_v<T>) return std::is_const_v<To> ? Kind::kStruct : Kind::kPointer;
  if (std::is_enum_v<T>) return Kind::kEnum;
  if (std::is_same_v<T, float>) return Kind::kFloat;
  if (std::is_same_v<T, double>) return Kind::kDouble;
  if (std::is_same_v<T, int32_t>) return Kind::kInt32;
  if (std::is_same_v<T, uint32_t>) return Kind::kUint32;
  if (std::is_same_v<T, int64_t>) return Kind::kInt64;
  static_assert(std::is_pointer_v<T> || std::is_enum_v<T> || std::is_arithmetic_v<T>);
  return Kind::kSize;
}

struct Enumerator {
  uint32_t value;
  const char* name;
};

// kName, and kAll, in the order of the header.
template <class E>
struct Enum;

// Those of a field of an enum; none of another field.
template <class T>
consteval std::span<const Enumerator> values_of() {
  if constexpr (std::is_enum_v<T>) {
    return Enum<T>::kAll;
  } else {
    return {};
  }
}

// A condition on a field of the same struct.
enum class Op : uint8_t {
  kGiven,  // it is not neutral
  kIs,     // it has this value
  kHas,    // it has this bit
};
inline constexpr uint8_t kNoField = 0xff;
struct Term {
  uint8_t field = kNoField;  // its number in the struct
  Op op = Op::kGiven;
  uint32_t value = 0;
  const char* name = "";  // of the value
};
struct OneOf {
  Term terms[4] = {};
};

// What must be there where a field is, or what must not.
struct Rule {
  OneOf one_of;
  bool needed;
};
inline constexpr size_t kRules = 6;  // of a field, at most

struct Field {
  const char* name;
  const char* path;  // as error texts have it: "y", "quant.scale"
  uint16_t offset;
  uint16_t size;
  Kind kind;
  std::span<const Enumerator> values;
  Role role;
  Shape shape;
  uint16_t dtypes;     // of tensors: bits such as kF32Bit
  uint64_t same_view;  // numbers of inputs that may be the same view, as bits
  uint64_t apart;      // numbers of inputs that this input must not overlap
  bool required;
  uint32_t refused;  // values of an enum, as bits
  OneOf needs[3];    // all of them
  Term excludes[3];

  constexpr size_t end() const { return size_t{offset} + size; }
  constexpr bool has_rules() const {
    return needs[0].terms[0].field != kNoField || excludes[0].field != kNoField;
  }
  // Number `number` of its rules, of which those without a term say nothing.
  constexpr Rule rule(size_t number) const {
    constexpr size_t kExcludes = std::size(decltype(excludes){});
    static_assert(kExcludes + std::size(decltype(needs){}) == kRules);
    if (number < kExcludes) return {{{excludes[number]}}, false};
    return {needs[number - kExcludes], true};
  }
};

// By the address of the member: field<&fastnorm_norm_args::x>.
template <auto member>
inline constexpr Field field = [] { static_assert(!sizeof(member), "fields.csv lacks it"); }();

// kName, kAll, and kMembers, a tuple of pointers to the members. All have the order of the struct.
template <class Struct>
struct Fields;

// True if the fields of the table follow each other and fill the struct: none has padding. A test
// compiles core with structs that have grown at their ends.
template <class Struct>
inline constexpr bool is_complete = [] {
  size_t end = 0;
  for (const Field& f : Fields<Struct>::kAll) {
    if (f.offset != end) return false;
    end = f.end();
  }
#ifdef FASTNORM_GROWN_HEADERS
  return end < sizeof(Struct);
#else
  return end == sizeof(Struct);
#endif
}();

#include "schema/fields.inc"

// The type of a field.
template <class Struct, class Type>
Type type_of_member(Type Struct::*);
template <auto member>
using TypeOf = decltype(type_of_member(member));
template <class Struct, class Type>
Struct struct_of_member(Type Struct::*);
template <auto member>
using StructOf = decltype(struct_of_member(member));

// The number of a field in its struct.
template <class Struct, class Type>
constexpr int number_of(Type Struct::*, size_t offset) {
  int i = 0;
  while (Fields<Struct>::kAll[i].offset != offset) ++i;
  return i;
}
template <auto member>
inline constexpr int kNumber = number_of(member, field<member>.offset);

// Quantised scales are an output, but for PER_TENSOR.
constexpr bool is_tensor(Role role) { return role >= Role::kRowsIn; }
constexpr bool is_output(Role role) {
  switch (role) {
    case Role::kRowsOut:
    case Role::kWeightOut:
    case Role::kStatOut:
    case Role::kScalarInout:
    case Role::kCodesOut:
    case Role::kScales:
    case Role::kBytesOut:
      return true;
    default:
      return false;
  }
}

// A field as a type, for calls of templates.
template <auto member, bool output = is_output(field<member>.role)>
struct Of {
  using Struct = StructOf<member>;
  static constexpr auto kMember = member;
  static constexpr const Field& kField = field<member>;
  static constexpr Shape kShape = kField.shape;
  static constexpr Role kRole = kField.role;
  static constexpr uint64_t kBit = uint64_t{1} << kNumber<member>;
  static constexpr bool kOutput = output;
};

// The tensors of a struct, as bits of their numbers.
template <class Struct>
inline constexpr uint64_t kTensors = [] {
  uint64_t bits = 0, bit = 1;
  for (const Field& f : Fields<Struct>::kAll) {
    if (is_tensor(f.role)) bits |= bit;
    bit <<= 1;
  }
  return bits;
}();

// True if an output may be the same view as an input.
template <auto output, auto input>
inline constexpr bool may_be_one = (field<output>.same_view >> kNumber<input> & 1) != 0;

// True if the values of an enum are 0, 1, ..: not so for flags.
template <class E>
inline constexpr bool counts_up = [] {
  uint32_t next = 0;
  for (const Enumerator& e : Enum<E>::kAll) {
    if (e.value != next++) return false;
  }
  return true;
}();

// The greatest value that a field of an enum takes; it refuses none below.
template <auto member>
inline constexpr uint32_t most_of = [] {
  using E = TypeOf<member>;
  static_assert(counts_up<E>);
  uint32_t most = std::size(Enum<E>::kAll) - 1;
  while ((field<member>.refused >> most & 1) != 0) --most;
  return (field<member>.refused & ((2u << most) - 1)) == 0 ? most : throw "a gap";
}();

// All bits of an enum of flags.
template <class E>
inline constexpr uint32_t kAllFlags = [] {
  uint32_t all = 0;
  for (const Enumerator& e : Enum<E>::kAll) all |= e.value;
  return all;
}();

}  // namespace fastnorm::schema
