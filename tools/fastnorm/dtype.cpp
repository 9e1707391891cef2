#include "dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace fastnorm::tool {
namespace {

// Code 2 is an IEEE float, 4 a bfloat, 0 and 1 integers, 6 a bool, as DLPack counts them.
constexpr DtypeName kDtypes[] = {
    {"f32", "F32", {2, 32, 1}},
    {"f16", "F16", {2, 16, 1}},
    {"bf16", "BF16", {4, 16, 1}},
    {"f64", "F64", {2, 64, 1}},
    {"f8_e4m3", "F8_E4M3", {10, 8, 1}},
    {"f8_e5m2", "F8_E5M2", {12, 8, 1}},
    {"f8_e8m0", "F8_E8M0", {14, 8, 1}},
    {"i8", "I8", {0, 8, 1}},
    {"u8", "U8", {1, 8, 1}},
    {"i16", "I16", {0, 16, 1}},
    {"u16", "U16", {1, 16, 1}},
    {"i32", "I32", {0, 32, 1}},
    {"u32", "U32", {1, 32, 1}},
    {"i64", "I64", {0, 64, 1}},
    {"u64", "U64", {1, 64, 1}},
    {"bool", "BOOL", {6, 8, 1}},
};

constexpr FloatFormat kF32 = {24, -126, 0x1.fffffep127};
constexpr FloatFormat kF16 = {11, -14, 65504.0};
constexpr FloatFormat kBf16 = {8, -126, 0x1.fep127};

bool same(fastnorm_dtype a, fastnorm_dtype b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

double decode_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = 0;
  if (exponent == 31) {
    value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, -24);
  } else {
    value = std::ldexp(1024 + fraction, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

// `value` is already rounded to f16.
uint16_t encode_f16(double value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7e00;
  if (std::isinf(value)) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x1p-14) return static_cast<uint16_t>(sign | std::lround(magnitude * 0x1p24));
  int exponent = 0;
  const double fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  const auto significand = static_cast<int>(fraction * 2048);
  return static_cast<uint16_t>(sign | (exponent + 14) << 10 | (significand - 1024));
}

}  // namespace

const DtypeName* find_dtype(std::string_view name) {
  for (const DtypeName& d : kDtypes) {
    if (d.name == name) return &d;
  }
  return nullptr;
}

const DtypeName* find_safetensors_dtype(std::string_view name) {
  for (const DtypeName& d : kDtypes) {
    if (d.safetensors == name) return &d;
  }
  return nullptr;
}

std::string safetensors_dtype_names() {
  std::string names;
  for (const DtypeName& d : kDtypes) {
    if (!d.safetensors.empty()) names += (names.empty() ? "" : ", ") + std::string(d.safetensors);
  }
  return names;
}

std::string dtype_names() {
  std::string names;
  for (const DtypeName& d : kDtypes) {
    if (!names.empty()) names += ',';
    names += d.name;
  }
  return names;
}

const DtypeName* find_dtype(fastnorm_dtype dtype) {
  for (const DtypeName& d : kDtypes) {
    if (same(d.dtype, dtype)) return &d;
  }
  return nullptr;
}

fastnorm_dtype dtype_or(const std::string& name, fastnorm_dtype otherwise) {
  return name.empty() ? otherwise : find_dtype(name)->dtype;
}

std::vector<std::string> row_dtype_names() { return {"f32", "f16", "bf16"}; }

FloatFormat float_format(fastnorm_dtype dtype) {
  return dtype.code == 4 ? kBf16 : dtype.bits == 16 ? kF16 : kF32;
}

double round_to(const FloatFormat& format, double value) {
  if (!std::isfinite(value) || value == 0) return value;
  if (std::fabs(value) > 2 * format.max_finite) {
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  const auto exponent = static_cast<int>(std::bit_cast<uint64_t>(value) >> 52 & 0x7ff) - 1023;
  const int least_bit = std::max(exponent, format.min_exponent) - (format.precision - 1);
  // 2^52 units of the format's last place: a sum with it has no bit below such a unit.
  const auto large = std::bit_cast<double>(static_cast<uint64_t>(1023 + 52 + least_bit) << 52);
  const double rounded = std::copysign((std::fabs(value) + large) - large, value);
  return std::fabs(rounded) > format.max_finite
             ? std::copysign(std::numeric_limits<double>::infinity(), value)
             : rounded;
}

double decode(fastnorm_dtype dtype, const void* element) {
  if (dtype.bits == 32) {
    float value = 0;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, element, sizeof bits);
  if (dtype.code != 4) return decode_f16(bits);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

void encode(fastnorm_dtype dtype, double value, void* element) {
  const double rounded = round_to(float_format(dtype), value);
  if (dtype.bits == 32) {
    const auto narrow = static_cast<float>(rounded);
    std::memcpy(element, &narrow, sizeof narrow);
    return;
  }
  uint16_t bits = 0;
  if (dtype.code != 4) {
    bits = encode_f16(rounded);
  } else {
    const auto narrow = static_cast<float>(rounded);
    uint32_t wide = 0;
    std::memcpy(&wide, &narrow, sizeof wide);
    bits = static_cast<uint16_t>(std::isnan(value) ? 0x7fc0 : wide >> 16);
  }
  std::memcpy(element, &bits, sizeof bits);
}

}  // namespace fastnorm::tool
