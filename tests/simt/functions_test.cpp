// exp, sigmoid, silu and tanh of the GPU's source: the bits of the specification.
#include "simt/cuda_words.h"
//
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "cuda/common/activation.cuh"
#include "cuda/common/element.cuh"
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

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// Every f16 and bf16, and every reciprocal that PTX allows a GPU to start from: it has an absolute
// error of 2^-23, two units. The largest d below 2 needs the nearest one: there two neighbours of
// 1 / d tie. fastnorm_check runs every bf16 on a GPU, from its own reciprocals.
TEST(Functions, ValueAndSlopeWithOnePower) {
  namespace cuda = fastnorm::cuda;
  using fastnorm::Dtype;
  int numbers = 0;
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
      float z[2];
      dtype == Dtype::kF16 ? cuda::Element<Dtype::kF16>::unpack_word(bits, z)
                           : cuda::Element<Dtype::kBF16>::unpack_word(bits, z);
      if (!(std::fabs(z[0]) <= cuda::kMostForOnePower)) continue;
      ++numbers;
      for (const bool silu : {false, true}) {
        const auto function = silu ? cuda::StageFunction::kSilu : cuda::StageFunction::kSigmoid;
        float value[1] = {z[0]}, slope[1] = {z[0]};
        cuda::activate(value, function), cuda::activation_slope(slope, function);
        for (int error = -2; error <= 2; ++error) {
          const cuda::ValueAndSlope at = cuda::value_and_slope(z[0], silu, [&](float d) {
            return 1.0f / d + (d == 0x1.fffffep0f ? 0.0f : static_cast<float>(error) * 0x1p-24f);
          });
          ASSERT_TRUE(same_bits(at.value, value[0]) && same_bits(at.slope, slope[0]))
              << std::hexfloat << z[0] << (silu ? " silu" : " sigmoid") << " error " << error
              << ": " << at.value << ", " << at.slope << ", not " << value[0] << ", " << slope[0];
        }
      }
    }
  }
  EXPECT_GT(numbers, 70000);
}

bool same_or_nan(float a, float b) { return same_bits(a, b) || (std::isnan(a) && std::isnan(b)); }

// Vectors with and without what one power cannot serve.
TEST(Functions, VectorsOfValuesAndSlopes) {
  namespace cuda = fastnorm::cuda;
  const float odd[] = {0.5f, -0.0f, 80.5f, -87.0f, -104.0f, -200.0f, 3e38f, INFINITY, -INFINITY};
  for (const float z : odd) {
    for (const auto function : {cuda::StageFunction::kSilu, cuda::StageFunction::kSigmoid}) {
      float v[4] = {1.0f, z, -2.5f, z}, slope[4];
      cuda::activate_with_slope<true>(v, slope, function);
      float s[4] = {1.0f, z, -2.5f, z}, s_slope[4];
      cuda::activate_with_slope<false>(s, s_slope, function);
      for (int i = 0; i < 4; ++i) {
        float of[1] = {i % 2 == 1 ? z : i == 0 ? 1.0f : -2.5f}, slope_of[1] = {of[0]};
        const float at = of[0];
        cuda::activate(of, function);
        cuda::activation_slope(slope_of, function);
        for (const float value : {v[i], s[i]}) EXPECT_TRUE(same_or_nan(value, of[0])) << at;
        for (const float value : {slope[i], s_slope[i]})
          EXPECT_TRUE(same_or_nan(value, slope_of[0])) << at;
      }
    }
  }
}

}  // namespace
