// The specification of exp, sigmoid, silu and tanh against double precision.
#include "ref/functions.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/functions.h"

namespace fastnorm {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double exact_sigmoid(double z) {
  return z < 0 ? std::exp(z) / (1 + std::exp(z)) : 1 / (1 + std::exp(-z));
}
double exact_silu(double z) { return z * exact_sigmoid(z); }

// The distance from `exact` in units in the last place of f32. Subnormal numbers have the least
// unit.
double distance(float value, double exact) {
  const double unit = std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
  return std::fabs(value - exact) / unit;
}

// The greatest distance over finite arguments whose value is an f32.
double greatest_distance(float (*function)(float), double (*exact)(double)) {
  double most = 0;
  for (const float x : test::function_arguments(4093)) {
    if (!std::isfinite(x)) continue;
    const double wanted = exact(x);
    if (std::fabs(wanted) >= 0x1.ffffffp127) {
      EXPECT_EQ(function(x), std::copysign(kInf, wanted)) << x;
    } else if (wanted == 0) {
      EXPECT_EQ(function(x), 0.0f) << x;
    } else {
      most = std::max(most, distance(function(x), wanted));
    }
  }
  return most;
}

TEST(Functions, AreNearTheExactValues) {
  const double exponential = greatest_distance(ref::exponential, std::exp);
  const double sigmoid = greatest_distance(ref::sigmoid, exact_sigmoid);
  const double silu = greatest_distance(ref::silu, exact_silu);
  const double tangent = greatest_distance(ref::hyperbolic_tangent, std::tanh);
  // docs/numerics.md has these bounds.
  EXPECT_LE(exponential, 0.9);
  EXPECT_LE(sigmoid, 2.1);
  EXPECT_LE(silu, 2.9);
  EXPECT_LE(tangent, 1.4);
  // One rounding alone would be 0.5. This shows that the search finds large distances.
  EXPECT_GE(std::min({exponential, sigmoid, silu, tangent}), 0.6);
}

TEST(Functions, SpecialValues) {
  EXPECT_EQ(ref::exponential(kInf), kInf);
  EXPECT_EQ(ref::exponential(-kInf), 0.0f);
  EXPECT_EQ(ref::exponential(0.0f), 1.0f);
  EXPECT_EQ(ref::sigmoid(kInf), 1.0f);
  EXPECT_EQ(ref::sigmoid(-kInf), 0.0f);
  EXPECT_FALSE(std::signbit(ref::sigmoid(-kInf)));
  EXPECT_EQ(ref::sigmoid(0.0f), 0.5f);
  EXPECT_EQ(ref::silu(kInf), kInf);
  EXPECT_EQ(ref::silu(0x1.fffffep127f), 0x1.fffffep127f);
  EXPECT_EQ(ref::hyperbolic_tangent(kInf), 1.0f);
  EXPECT_EQ(ref::hyperbolic_tangent(-kInf), -1.0f);
  // At and below -110 silu is -0. There is no product of Inf and 0.
  for (const float z : {-kInf, -0x1.fffffep127f, -1000.0f, -110.0f, -0.0f}) {
    EXPECT_EQ(ref::silu(z), 0.0f) << z;
    EXPECT_TRUE(std::signbit(ref::silu(z))) << z;
  }
  EXPECT_TRUE(std::signbit(ref::hyperbolic_tangent(-0.0f)));
  EXPECT_FALSE(std::signbit(ref::silu(0.0f)));
  for (const auto function : {ref::exponential, ref::sigmoid, ref::silu, ref::hyperbolic_tangent}) {
    EXPECT_TRUE(std::isnan(function(kNan)));
    EXPECT_TRUE(std::isnan(function(-kNan)));
  }
}

TEST(Functions, SubnormalResultsAreKept) {
  EXPECT_EQ(ref::exponential(-103.0f), 0x1p-149f);
  EXPECT_LT(ref::silu(-100.0f), 0.0f);
  EXPECT_GT(ref::sigmoid(-100.0f), 0.0f);
}

}  // namespace
}  // namespace fastnorm
