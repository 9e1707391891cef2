#include "ref/dtype.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace fastnorm::ref {
namespace {

struct Format {
  int precision;     // bits of the significand with the hidden one
  int least_normal;  // exponent of the least normal number
  double greatest;
};

constexpr Format format_of(Type type) {
  switch (type) {
    case Type::kF16:
      return {11, -14, 65504.0};
    case Type::kBF16:
      return {8, -126, 0x1.fep127};
    default:
      return {24, -126, 0x1.fffffep127};
  }
}

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

double round_to(Type type, double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const Format format = format_of(type);
  const int exponent = std::ilogb(value);
  const int unit =
      (exponent > format.least_normal ? exponent : format.least_normal) - (format.precision - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  if (std::fabs(rounded) <= format.greatest) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), value);
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
