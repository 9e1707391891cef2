#include "ref/functions.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace fastnorm::ref {
namespace {

constexpr float kLeastPower = -110.0f, kGreatestPower = 90.0f;

float power_of_two(int n) { return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23); }

// exp(x) = significand * first * second.
struct Power {
  float significand, first, second;
};

Power power_of_e(float x) {
  if (std::isnan(x)) return {x, 1.0f, 1.0f};
  const float n = std::nearbyint(std::fma(x, 0x1.715476p+0f, 0x1.8p23f)) - 0x1.8p23f;
  const float r = std::fma(n, 0x1.05c610p-29f, std::fma(n, -0x1.62e430p-1f, x));
  float p = 0x1.6a23cep-10f;
  for (const float c : {0x1.123a20p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f, 1.0f, 1.0f})
    p = std::fma(p, r, c);
  const int exponent = static_cast<int>(n);
  // Two halves. An odd remainder is rounded like that of a biased exponent.
  const int half = static_cast<int>(std::nearbyint(static_cast<double>(exponent) / 2 + 127)) - 127;
  return {p, power_of_two(half), power_of_two(exponent - half)};
}

// NaN stays NaN.
float limited(float x) {
  return x < kLeastPower ? kLeastPower : x > kGreatestPower ? kGreatestPower : x;
}

float over_one_and_power(float z, float scale) {
  const Power p = power_of_e(limited(-std::fabs(z)));
  const float most = p.significand * p.first;
  const float e = most * p.second;
  const float quotient = scale * (z < 0.0f ? most : 1.0f) / (1.0f + e);
  return z < 0.0f ? quotient * p.second : quotient;
}

}  // namespace

float exponential(float x) {
  const Power p = power_of_e(limited(x));
  return p.significand * p.first * p.second;
}

float sigmoid(float z) { return over_one_and_power(z, 1.0f); }

float silu(float z) {
  const float kept = z < kLeastPower ? kLeastPower : z;
  return over_one_and_power(kept, kept);
}

float hyperbolic_tangent(float x) {
  const float a = std::fabs(x), square = a * a;
  float p = -0x1.75d50cp-8f;
  for (const float c : {0x1.5223dep-6f, -0x1.b83bf4p-5f, 0x1.110724p-3f, -0x1.555532p-2f})
    p = std::fma(p, square, c);
  const float below = std::fma(p, square * a, a);
  const float above = 1.0f - 2.0f / (exponential(a + a) + 1.0f);
  return std::copysign(a < 0.625f ? below : above, x);
}

}  // namespace fastnorm::ref
