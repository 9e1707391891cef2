// exp, sigmoid, silu and tanh of the GPU's source: the bits of the specification.
#include "simt/cuda_words.h"
//
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "cuda/common/functions.cuh"
#include "ref/functions.h"
#include "support/functions.h"

namespace {

void expect_same(float (*ours)(float), float (*specified)(float)) {
  for (const float x : fastnorm::test::function_arguments(4093)) {
    const float value = ours(x), wanted = specified(x);
    const bool same =
        std::isnan(wanted) ? std::isnan(value) : std::memcmp(&wanted, &value, sizeof wanted) == 0;
    ASSERT_TRUE(same) << std::hexfloat << x << ": " << value << ", specified: " << wanted;
  }
}

TEST(Functions, GpuSourceHasTheBitsOfTheSpecification) {
  namespace cuda = fastnorm::cuda;
  namespace ref = fastnorm::ref;
  expect_same(cuda::exponential, ref::exponential);
  expect_same(cuda::sigmoid, ref::sigmoid);
  expect_same(cuda::silu, ref::silu);
  expect_same(cuda::hyperbolic_tangent, ref::hyperbolic_tangent);
}

// From approximations that are worse than a GPU's, for every divisor whose reciprocal they lead to.
TEST(Functions, QuotientInRangeIsRoundedWhereverTheReciprocalIs) {
  const float smallest = 0x1p-149f, inf = INFINITY;
  for (const int units : {-1, 0, 1}) {
    fastnorm::ptx::rcp_units = units;
    int divisors = 0, wrong = 0;
    uint32_t bits = 0x01234567;
    const auto check = [&](float a, float d) {
      wrong += fastnorm::cuda::quotient_in_range(a, d) != a / d;
    };
    for (uint32_t i = 0; i <= 1u << 23; ++i) {
      const float d = std::bit_cast<float>(0x3f800000 + i), r = fastnorm::ptx::rcp_approx(d);
      if (std::fma(std::fma(-d, r, 1.0f), r, r) != 1.0f / d) continue;
      ++divisors;
      bits = bits * 1664525 + 1013904223;
      const float a = std::bit_cast<float>(0x3c000000 + bits % (15u << 23));  // 2^-7 to 2^8
      check(a, d), check(1.0f, d), check(-a, d), check(a * 0x1p-90f, d), check(a * 0x1p119f, d);
    }
    EXPECT_GE(divisors, (1 << 23) + 1 - (units == 0 ? 0 : 50)) << units;
    for (const float a : {smallest, 3 * smallest, 0x1.8p-127f, 0x1.fffffep-126f, 0x1p-103f})
      check(a, 2.0f), check(-a, 2.0f);
    check(inf, 1.0f), check(0x1.fffffep127f, 1.0f), check(0x1.fffffep127f, 2.0f);
    EXPECT_EQ(wrong, 0) << units << " units from the nearest approximation";
    EXPECT_TRUE(std::isnan(fastnorm::cuda::quotient_in_range(NAN, NAN)));
    EXPECT_TRUE(std::signbit(fastnorm::cuda::quotient_in_range(-0.0f, 2.0f)));
    EXPECT_FALSE(std::signbit(fastnorm::cuda::quotient_in_range(0.0f, 2.0f)));
  }
  fastnorm::ptx::rcp_units = 0;
}

}  // namespace
