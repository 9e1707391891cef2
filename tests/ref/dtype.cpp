#include "ref/dtype.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace fastnorm::ref {
namespace {

template <typename Word>
void decode_words(Type type, const void* from, float* to, int64_t count) {
  const auto* bytes = static_cast<const unsigned char*>(from);
  for (int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, bytes + i * static_cast<int64_t>(sizeof word), sizeof word);
    to[i] = decode(type, word);
  }
}

template <typename Word>
void encode_words(Type type, const float* from, void* to, int64_t count) {
  auto* bytes = static_cast<unsigned char*>(to);
  for (int64_t i = 0; i < count; ++i) {
    const auto word = static_cast<Word>(encode(type, from[i]));
    std::memcpy(bytes + i * static_cast<int64_t>(sizeof word), &word, sizeof word);
  }
}

}  // namespace

// Adding 1.5 x 2^52 units drops what is below a unit, to nearest even. No function is called: every
// result of every check comes here several times.
double round_to(Type type, double value) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  const int precision = type == Type::kF16 ? 11 : type == Type::kBF16 ? 8 : 24;
  const int least_normal = type == Type::kF16 ? -14 : -126;
  const int over = type == Type::kF16 ? 16 : 128;  // exponent of the first number that is Inf
  const auto bits = std::bit_cast<uint64_t>(value), sign = bits & kSign, magnitude = bits & ~kSign;
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  if (exponent == 1024) return value;  // Inf, NaN
  uint64_t result = uint64_t{0x7ff} << 52;
  if (exponent < over) {
    const int unit = std::max(exponent, least_normal) - (precision - 1);
    const double dropper = std::bit_cast<double>((static_cast<uint64_t>(1023 + 52 + unit) << 52) +
                                                 (uint64_t{1} << 51));
    const double rounded = (std::bit_cast<double>(magnitude) + dropper) - dropper;
    // A carry may reach the exponent of Inf.
    if (rounded < std::bit_cast<double>(static_cast<uint64_t>(1023 + over) << 52))
      result = std::bit_cast<uint64_t>(rounded);
  }
  return std::bit_cast<double>(sign | result);
}

void decode_row(Type type, const void* from, float* to, int64_t count) {
  if (count == 0) return;
  if (type == Type::kF32) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  } else {
    decode_words<uint16_t>(type, from, to, count);
  }
}

void encode_row(Type type, const float* from, void* to, int64_t count) {
  if (count == 0) return;
  if (type == Type::kF32) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  } else {
    encode_words<uint16_t>(type, from, to, count);
  }
}

}  // namespace fastnorm::ref
