#include "ref/quant.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cfloat>
#include <cmath>
#include <limits>
#include <utility>

namespace fastnorm::ref {
namespace {

constexpr double kU = 0x1p-24;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// --- codes ---

// A small float: sign, exponent, fraction. Codes of magnitudes increase with the value, from 0.
struct SmallFloat {
  int fraction_bits;
  int least_normal;  // exponent of the least normal number
  uint8_t greatest;  // code of the greatest finite number
  uint8_t nan;       // what NaN becomes
  uint8_t sign;
};

constexpr SmallFloat small_float(Format format) {
  switch (format) {
    case Format::kE4M3:
      return {3, -6, 0x7e, 0x7f, 0x80};
    case Format::kE5M2:
      return {2, -14, 0x7b, 0x7f, 0x80};
    default:
      return {1, 0, 0x7, 0x7, 0x8};
  }
}

// By the bits of a double, in a quarter of the time of std::ilogb and std::ldexp. 0 and subnormals
// give -1023.
int exponent_of(double magnitude) {
  return static_cast<int>(std::bit_cast<uint64_t>(magnitude) >> 52) - 1023;
}
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52);
}

uint8_t encode_i8(double value) {
  if (std::isnan(value)) return 0;
  const double clamped = std::clamp(value, -128.0, 127.0);
  return static_cast<uint8_t>(static_cast<int>(std::nearbyint(clamped)));
}

// --- the steps from z to a scale ---

float floor_of(const QuantOptions& o) { return o.amax_floor != 0 ? o.amax_floor : 1e-10f; }

bool is_nan_code(Format format, int magnitude) {
  return (format == Format::kE4M3 && magnitude == 0x7f) ||
         (format == Format::kE5M2 && magnitude > 0x7c);
}

bool has_floor(const QuantOptions& o) {
  return o.scheme == Scheme::kPerRow || o.scheme == Scheme::kPerBlock;
}
bool is_pow2(const QuantOptions& o) { return is_mx(o.scheme) || o.pow2; }

// NVFP4: the factor of amax.
float nvfp4_factor(float global_scale) { return std::fabs(1.0f / global_scale * (1.0f / 6.0f)); }

// The factor of z, for a scale as stored.
float inverse_of(const QuantOptions& o, float scale, float global_scale) {
  if (o.scheme != Scheme::kNvfp4) return 1.0f / scale;
  if (scale == 0) return 0.0f;
  const float inverse = 1.0f / (scale * global_scale);
  return std::fabs(inverse) > FLT_MAX ? std::copysign(FLT_MAX, inverse) : inverse;  // NaN stays NaN
}

// The input of the quantiser. Without quantisation, y.
float seen(const QuantOptions& o, Type dtype, float z) {
  if (o.scheme == Scheme::kNone) return round_to(dtype, z);
  if (o.source == QuantSource::kRounded) z = round_to(dtype, z);
  if (o.clamp > 0 && z > o.clamp) return o.clamp;
  if (o.clamp > 0 && z < -o.clamp) return -o.clamp;
  return z;
}

struct Scale {
  float value = 0;
  uint8_t byte = 0;
};

Scale dynamic_scale(const QuantOptions& o, float amax, float global_scale) {
  if (o.scheme == Scheme::kNvfp4) {
    const uint8_t byte = encode(Format::kE4M3, amax * nvfp4_factor(global_scale));
    return {static_cast<float>(decode(Format::kE4M3, byte)), byte};
  }
  const float magnitude = has_floor(o) ? max_magnitude(amax, floor_of(o)) : amax;
  if (!is_pow2(o)) return {magnitude / qmax(o.format), 0};
  if (std::isnan(magnitude)) return {kNan, 0xff};
  const auto byte = static_cast<uint8_t>(scale_exponent(o.format, magnitude) + 127);
  return {decode_e8m0(byte), byte};
}

// --- bounds ---

bool is_single(double v) { return v == static_cast<double>(static_cast<float>(v)); }

// The bounds allow one value, and the library has it. What follows from it is exact.
bool is_known(const Range& r) { return r.low == r.high && is_single(r.low); }

// Widened by 3u on both sides. A zero keeps its sign.
Range widened(const Range& r) {
  return {r.low * (r.low < 0 ? 1 + 3 * kU : 1 - 3 * kU),
          r.high * (r.high < 0 ? 1 - 3 * kU : 1 + 3 * kU)};
}

Range seen_range(const QuantOptions& o, Type dtype, Range z) {
  const bool none = o.scheme == Scheme::kNone;
  if (none || o.source == QuantSource::kRounded)
    z = {round_to(dtype, z.low), round_to(dtype, z.high)};
  if (!none && o.clamp > 0) {
    const double c = o.clamp;
    z = {std::clamp(z.low, -c, c), std::clamp(z.high, -c, c)};
  }
  return z;
}

bool is_bounded(const Range& z) {
  return z.low <= z.high && z.low >= -FLT_MAX && z.high <= FLT_MAX;
}

Range magnitude_range(const Range& z) {
  if (z.low <= 0 && z.high >= 0) return {0, std::max(-z.low, z.high)};
  const double a = std::fabs(z.low), b = std::fabs(z.high);
  return {std::min(a, b), std::max(a, b)};
}

Range e4m3_range(double low, double high) {
  return {decode(Format::kE4M3, encode(Format::kE4M3, low)),
          decode(Format::kE4M3, encode(Format::kE4M3, high))};
}

Range scale_range(const QuantOptions& o, Range amax, float global_scale) {
  if (has_floor(o)) {
    const double least = floor_of(o);
    amax = {std::max(amax.low, least), std::max(amax.high, least)};
  }
  if (is_known(amax)) {
    const double scale = dynamic_scale(o, static_cast<float>(amax.low), global_scale).value;
    return {scale, scale};
  }
  const Range a = widened(amax);
  if (o.scheme == Scheme::kNvfp4) {
    const double factor = nvfp4_factor(global_scale);
    return e4m3_range(a.low * factor, a.high * factor);
  }
  if (is_pow2(o))
    return {std::ldexp(1, scale_exponent(o.format, a.low)),
            std::ldexp(1, scale_exponent(o.format, a.high))};
  return {a.low / qmax(o.format), a.high / qmax(o.format)};
}

CodeRange code_range(const QuantOptions& o, Range z, float scale, float inverse) {
  const Format format = o.format;
  // If z is zero, the reference does not know its sign.
  if (z.low == 0) z.low = -0.0;
  if (z.high == 0) z.high = 0.0;
  const bool known = is_known(z);
  const auto product = [&](double v) {
    if (o.divide) return known ? static_cast<double>(static_cast<float>(v) / scale) : v / scale;
    return known ? static_cast<double>(static_cast<float>(v) * inverse) : v * inverse;
  };
  Range w = {product(z.low), product(z.high)};
  if (std::signbit(inverse)) std::swap(w.low, w.high);
  if (!known) w = widened(w);
  return {code_order(format, encode(format, w.low)), code_order(format, encode(format, w.high))};
}

bool has_bounds(const QuantOptions& o, float global_scale, const float* scale) {
  if (o.scheme == Scheme::kPerTensor)
    return !std::isnan(scale[0]) && std::isfinite(inverse_of(o, scale[0], global_scale));
  if (o.scheme != Scheme::kNvfp4) return true;
  const float factor = nvfp4_factor(global_scale);
  return factor > 0 && factor <= FLT_MAX;
}

}  // namespace

uint8_t encode(Format format, double value) {
  if (format == Format::kI8) return encode_i8(value);
  const SmallFloat f = small_float(format);
  if (std::isnan(value)) return f.nan;
  const int sign = std::signbit(value) ? f.sign : 0;
  const double magnitude = std::fabs(value);
  if (magnitude >= static_cast<double>(qmax(format)))
    return static_cast<uint8_t>(sign | f.greatest);
  // The code counts the steps from 0: those of all binades below, then those in this one.
  // Subnormals count with the binade of the least normal numbers: they are its first
  // 2^fraction_bits steps.
  const int binade = std::max(exponent_of(magnitude), f.least_normal);
  const double steps = std::nearbyint(magnitude * power_of_two(f.fraction_bits - binade));
  const int code = ((binade - f.least_normal) << f.fraction_bits) + static_cast<int>(steps);
  return static_cast<uint8_t>(sign | code);
}

double decode(Format format, uint8_t code) {
  if (format == Format::kI8) return static_cast<int8_t>(code);
  const SmallFloat f = small_float(format);
  const int magnitude = code & (f.sign - 1);
  const double sign = (code & f.sign) != 0 ? -1 : 1;
  if (is_nan_code(format, magnitude)) return kNan;
  if (format == Format::kE5M2 && magnitude == 0x7c) return sign * static_cast<double>(kInf);
  const int hidden = 1 << f.fraction_bits;
  const int exponent = magnitude / hidden, fraction = magnitude % hidden;
  const int significand = exponent == 0 ? fraction : fraction + hidden;
  return sign *
         std::ldexp(significand, std::max(exponent, 1) - 1 + f.least_normal - f.fraction_bits);
}

float decode_e8m0(uint8_t byte) {
  return byte == 0xff ? kNan : std::ldexp(1.0f, static_cast<int>(byte) - 127);
}

int scale_exponent(Format format, double magnitude) {
  assert(format != Format::kI8);
  if (magnitude == 0) return -127;
  if (std::isinf(magnitude)) return 127;
  const double qmax_significand = format == Format::kE2M1 ? 1.5 : 1.75;
  const int qmax_exponent = std::ilogb(qmax(format));
  const int exponent = std::ilogb(magnitude);
  const double significand = std::ldexp(magnitude, -exponent);
  return std::clamp(exponent - qmax_exponent + (significand > qmax_significand ? 1 : 0), -127, 127);
}

float max_magnitude(float a, float b) {
  const uint32_t x = std::bit_cast<uint32_t>(a) & 0x7fffffffu;
  const uint32_t y = std::bit_cast<uint32_t>(b) & 0x7fffffffu;
  return std::bit_cast<float>(std::max(x, y));
}

void quant_model(const QuantOptions& o, const float* z, int64_t n, Type dtype, float scale_in,
                 float global_scale, QuantResult* result) {
  const bool quantises = o.scheme != Scheme::kNone;
  result->codes.assign(quantises ? static_cast<size_t>(n) : 0, 0);
  result->scale.clear();
  result->scale_bytes.clear();
  result->amax = 0;
  const int64_t columns = scope_columns(o, n);
  for (int64_t start = 0; start < n; start += columns) {
    const int64_t end = std::min(n, start + columns);
    float amax = 0;
    for (int64_t i = start; i < end; ++i) amax = max_magnitude(amax, seen(o, dtype, z[i]));
    result->amax = max_magnitude(result->amax, amax);
    if (!quantises) continue;

    const bool given = o.scheme == Scheme::kPerTensor;
    const Scale scale = given ? Scale{scale_in, 0} : dynamic_scale(o, amax, global_scale);
    result->scale.push_back(scale.value);
    if (has_scale_bytes(o)) result->scale_bytes.push_back(scale.byte);
    const float inverse = inverse_of(o, scale.value, global_scale);
    for (int64_t i = start; i < end; ++i) {
      const float value = seen(o, dtype, z[i]);
      result->codes[static_cast<size_t>(i)] =
          encode(o.format, o.divide ? value / scale.value : value * inverse);
    }
  }
}

void rotate_model(const QuantOptions& o, const float* signs, bool shared, Type dtype, int64_t n,
                  float* z) {
  for (int64_t i = 0; i < n; ++i) {
    if (o.source == QuantSource::kRounded) z[i] = round_to(dtype, z[i]);
    if (signs != nullptr) z[i] *= signs[shared ? i % o.rotation : i];
  }
  for (int64_t h = 1; h < o.rotation; h *= 2) {
    for (int64_t i = 0; i < n; ++i) {
      if (i / h % 2 != 0) continue;
      const float first = z[i], second = z[i + h];
      z[i] = first + second;
      z[i + h] = first - second;
    }
  }
  const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(o.rotation)));
  for (int64_t i = 0; i < n; ++i) z[i] *= factor;
}

void rotate_ref(const QuantOptions& o, const float* signs, bool shared, Type dtype, int64_t n,
                double* z, double* bound) {
  const int64_t block = o.rotation;
  const auto size = static_cast<double>(block);
  std::vector<double> in(z, z + n);
  for (int64_t i = 0; i < n; ++i) {
    auto& v = in[static_cast<size_t>(i)];
    if (o.source == QuantSource::kRounded) v = round_to(dtype, v);
    if (signs != nullptr) v *= signs[shared ? i % block : i];
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t first = i / block * block;
    double sum = 0, magnitudes = 0;
    for (int64_t j = 0; j < block; ++j) {
      const double v = in[static_cast<size_t>(first + j)];
      const bool odd = std::popcount(static_cast<uint64_t>(i % block & j)) % 2 != 0;
      sum += odd ? -v : v;
      magnitudes += std::fabs(v);
    }
    z[i] = sum / std::sqrt(size);
    // A rounding for each step, one of the factor and one of the product with it.
    bound[i] = (std::log2(size) + 2) * kU * 1.001 * magnitudes / std::sqrt(size) + 0x1p-149;
  }
}

void pack_e2m1(const uint8_t* codes, int64_t n, uint8_t* bytes) {
  for (int64_t i = 0; i < n / 2; ++i)
    bytes[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
}

int code_order(Format format, uint8_t code) {
  if (format == Format::kI8) return static_cast<int8_t>(code);
  const int sign = small_float(format).sign;
  const int magnitude = code & (sign - 1);
  return (code & sign) != 0 ? -1 - magnitude : magnitude;
}

bool holds_scale(const QuantOptions& o, const Range& bounds, float scale) {
  int exponent;
  return bounds.holds(scale) && (!is_pow2(o) || std::frexp(scale, &exponent) == 0.5f);
}

void quant_bounds(const QuantOptions& o, const Range* z, int64_t n, Type dtype, float global_scale,
                  const float* scale, QuantBounds* bounds) {
  *bounds = {};
  const bool quantises = o.scheme != Scheme::kNone;
  if (!has_bounds(o, global_scale, scale)) return;
  const int64_t columns = scope_columns(o, n);
  for (int64_t start = 0, scope = 0; start < n; start += columns, ++scope) {
    const int64_t end = std::min(n, start + columns);
    Range amax;
    for (int64_t i = start; i < end; ++i) {
      const Range seen = seen_range(o, dtype, z[i]);
      if (!is_bounded(seen)) return;
      const Range magnitude = magnitude_range(seen);
      amax = {std::max(amax.low, magnitude.low), std::max(amax.high, magnitude.high)};
    }
    bounds->amax = {std::max(bounds->amax.low, amax.low), std::max(bounds->amax.high, amax.high)};
    if (!quantises) continue;

    const bool given = o.scheme == Scheme::kPerTensor;
    bounds->scale.push_back(given ? Range{scale[0], scale[0]} : scale_range(o, amax, global_scale));
    const float inverse = inverse_of(o, scale[scope], global_scale);
    for (int64_t i = start; i < end; ++i)
      bounds->codes.push_back(code_range(o, seen_range(o, dtype, z[i]), scale[scope], inverse));
  }
  bounds->valid = true;
}

}  // namespace fastnorm::ref
