#include "ref/data.h"

#include <cmath>
#include <limits>

namespace fastnorm::ref {
namespace {

// About N(0, 1): four uniform 16-bit numbers, added and scaled.
float normal(uint64_t bits) {
  const auto sum = static_cast<int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                        (bits >> 32 & 0xffff) + (bits >> 48));
  return static_cast<float>(sum - 2 * 0xffff) * (1.7320508f / 65536.0f);
}

// Any finite value of the dtype.
float random_bits(Type type, uint64_t bits) {
  const float value =
      decode(type, static_cast<uint32_t>(type == Type::kF32 ? bits : bits & 0xffff));
  return std::isfinite(value) ? value : normal(bits);
}

float weight(Type type, uint64_t bits) {
  switch (bits >> 58) {  // of 64
    case 0:
      return 0.0f;
    case 1:
      return -0.0f;
    case 2:
      return type == Type::kF16 ? 0x1p-24f : 0x1p-126f;
    case 3:
      return -3.5f;
    default:
      return 1.0f + 0.3f * normal(bits);
  }
}

// A value of T so small or large that its square leaves the range of f32, if T reaches that far.
float extreme(Type type, uint64_t bits, bool tiny) {
  const float factor = 1.0f + static_cast<float>(bits & 0xff) / 512.0f;
  const float sign = (bits >> 32 & 1) != 0 ? -1.0f : 1.0f;
  if (type == Type::kF16) return sign * factor * (tiny ? 0x1p-14f : 0x1p15f);
  return sign * factor * (tiny ? 0x1p-76f : 0x1p65f);
}

float subnormal(Type type, uint64_t bits) {
  const uint32_t fraction = type == Type::kF32 ? 0x7fffff : type == Type::kF16 ? 0x3ff : 0x7f;
  const uint32_t sign = type == Type::kF32 ? 0x80000000u : 0x8000u;
  return decode(type,
                (static_cast<uint32_t>(bits) & fraction) | ((bits >> 40 & 1) != 0 ? sign : 0));
}

// One value for a whole row. Its multiples are rarely exact.
float constant(Type type, uint64_t bits) {
  const float significand = 1.0f + static_cast<float>(bits & 0x7fffff) * 0x1p-23f;
  const int exponent = type == Type::kF16 ? static_cast<int>(bits >> 32 & 0xff) % 28 - 13
                                          : static_cast<int>(bits >> 32 & 0xff) % 166 - 66;
  return std::ldexp((bits >> 63) != 0 ? -significand : significand, exponent);
}

float element(Pattern pattern, Type type, uint64_t seed, int64_t i) {
  const uint64_t bits = hash(seed ^ static_cast<uint64_t>(i) * 0xd1342543de82ef95u);
  switch (pattern) {
    case Pattern::kRandomBits:
      return random_bits(type, bits);
    case Pattern::kTiny:
      return extreme(type, bits, true);
    case Pattern::kSubnormal:
      return subnormal(type, bits);
    case Pattern::kHuge:
      return extreme(type, bits, false);
    case Pattern::kZeros:
      return 0.0f;
    case Pattern::kMinusZeros:
      return -0.0f;
    case Pattern::kLargeMean:  // one power of two for the whole row
      return std::ldexp(1.0f, static_cast<int>(hash(seed) % 13)) + normal(bits);
    case Pattern::kAlternating:
      return (i & 1) != 0 ? -1.375f : 1.375f;
    case Pattern::kConstant:
      return constant(type, hash(seed, 2));
    case Pattern::kWeights:
      return weight(type, bits);
    default:
      return normal(bits);
  }
}

// The one element that differs from the rest of its row.
void put_odd_one(Pattern pattern, uint64_t seed, float* values, int64_t n) {
  const uint64_t bits = hash(seed, 1);
  const bool first = pattern == Pattern::kOutlier && (bits >> 50 & 1) != 0;
  float& odd = values[first ? 0 : bits % static_cast<uint64_t>(n)];
  const float sign = (bits >> 40 & 1) != 0 ? -1.0f : 1.0f;
  if (pattern == Pattern::kOneNan) odd = std::numeric_limits<float>::quiet_NaN();
  if (pattern == Pattern::kOneInf) odd = sign * std::numeric_limits<float>::infinity();
  if (pattern == Pattern::kOutlier) odd = sign * std::ldexp(1.25f, 10 + static_cast<int>(bits % 5));
}

}  // namespace

const char* name_of(Pattern pattern) {
  constexpr const char* kNames[] = {"normal",   "random bits", "tiny",        "subnormal",
                                    "huge",     "zeros",       "minus zeros", "one NaN",
                                    "one Inf",  "large mean",  "one outlier", "alternating",
                                    "constant", "weights"};
  return kNames[static_cast<int>(pattern)];
}

void fill_row(Pattern pattern, Type type, uint64_t seed, float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = round_to(type, element(pattern, type, seed, i));
  put_odd_one(pattern, seed, values, n);
}

}  // namespace fastnorm::ref
