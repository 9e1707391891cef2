// exp, sigmoid, silu and tanh of the GPU's source: the bits of the specification.
#include "simt/cuda_words.h"
//
#include <gtest/gtest.h>

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

// Vectors with and without what one power cannot serve.
TEST(Functions, VectorsOfValuesAndSlopes) {
  namespace cuda = fastnorm::cuda;
  const float odd[] = {0.5f, -0.0f, 80.5f, -87.0f, -104.0f, -200.0f, 3e38f, INFINITY, -INFINITY};
  for (const float z : odd) {
    float v[4] = {1.0f, z, -2.5f, z}, slope[4];
    cuda::activate_with_slope<true>(v, slope);
    float s[4] = {1.0f, z, -2.5f, z}, s_slope[4];
    cuda::activate_with_slope<false>(s, s_slope);
    for (int i = 0; i < 4; ++i) {
      const float at = i % 2 == 1 ? z : i == 0 ? 1.0f : -2.5f;
      float of[1] = {at}, slope_of[1] = {at};
      cuda::activate(of, cuda::StageFunction::kSilu);
      cuda::activation_slope(slope_of, cuda::StageFunction::kSilu);
      EXPECT_TRUE(same_bits(v[i], of[0]) || (std::isnan(v[i]) && std::isnan(of[0]))) << at;
      EXPECT_TRUE(same_bits(slope[i], slope_of[0]) ||
                  (std::isnan(slope[i]) && std::isnan(slope_of[0])))
          << at;
      of[0] = slope_of[0] = at;
      cuda::activate(of, cuda::StageFunction::kSigmoid);
      cuda::activation_slope(slope_of, cuda::StageFunction::kSigmoid);
      EXPECT_TRUE(same_bits(s[i], of[0]) && same_bits(s_slope[i], slope_of[0])) << at;
    }
  }
}

}  // namespace
