// The element types of rows and their conversions, in integer arithmetic only.
#pragma once

#include <bit>
#include <cstdint>

namespace fastnorm::ref {

enum class Type : uint8_t { kF32, kF16, kBF16 };
inline constexpr Type kTypes[] = {Type::kF32, Type::kF16, Type::kBF16};

constexpr int bytes_of(Type type) { return type == Type::kF32 ? 4 : 2; }
constexpr const char* name_of(Type type) {
  return type == Type::kF32 ? "f32" : type == Type::kF16 ? "f16" : "bf16";
}

// Elements of a 16-byte vector: the V of the GPU's summation order.
constexpr int per_vector(Type type) { return 16 / bytes_of(type); }

constexpr float decode_bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

constexpr float decode_f16(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = bits >> 10 & 31u, fraction = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  if (fraction == 0) return std::bit_cast<float>(sign);
  const auto shift =
      static_cast<uint32_t>(std::countl_zero(fraction) - 21);  // moves the leading bit to 2^10
  return std::bit_cast<float>(sign | (113 - shift) << 23 | (fraction << shift & 0x3ffu) << 13);
}

constexpr bool is_nan_bits(uint32_t f32_bits) { return (f32_bits & 0x7fffffffu) > 0x7f800000u; }

// To nearest even. Adding half a unit less one, plus the last bit that stays, carries if the rest
// is above a half. It also carries if the rest is a half and the bit is odd. A carry out of the
// fraction gives the next exponent, and Inf after the greatest number.
constexpr uint32_t encode_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (is_nan_bits(bits)) return bits >> 16 | 0x40u;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

constexpr uint32_t encode_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x47800000u) return sign | 0x7c00u;  // 2^16 or more
  if (magnitude >= 0x38800000u) {                       // 2^-14: normal
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return sign | (rounded - 0x38000000u) >> 13;  // a carry to 2^16 gives 0x7c00, Inf
  }
  if (magnitude < 0x33000000u) return sign;  // below 2^-25, half of the least subnormal
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t drop = 126 - (magnitude >> 23);  // the unit is 2^-24: bits below it, 14 to 24
  const uint32_t half = 1u << (drop - 1), rest = significand & ((1u << drop) - 1);
  const uint32_t kept = significand >> drop;
  return sign | (kept + (rest > half || (rest == half && (kept & 1u) != 0) ? 1u : 0u));
}

// A value's bits are in the low end of a word. Encoding: nearest even, subnormals kept, overflow to
// Inf, NaN stays NaN.
constexpr float decode(Type type, uint32_t bits) {
  if (type == Type::kF32) return std::bit_cast<float>(bits);
  return type == Type::kF16 ? decode_f16(bits) : decode_bf16(bits);
}
constexpr uint32_t encode(Type type, float value) {
  if (type == Type::kF32) return std::bit_cast<uint32_t>(value);
  return type == Type::kF16 ? encode_f16(value) : encode_bf16(value);
}

// r_T of the specification.
constexpr float round_to(Type type, float value) {
  return type == Type::kF32 ? value : decode(type, encode(type, value));
}

// The nearest value of a type to a double, in one rounding.
double round_to(Type type, double value);

// `count` elements of packed memory at any address.
void decode_row(Type type, const void* from, float* to, int64_t count);
void encode_row(Type type, const float* from, void* to, int64_t count);

}  // namespace fastnorm::ref
