// The arithmetic of the GPU's quantising sink that no instruction gives exactly, tried on every significand.
#include "simt/cuda_words.h"
//
#include <gtest/gtest.h>

#include "cuda/quant.cuh"

namespace {

using fastnorm::cuda::divide_by_greatest;

float significand(uint32_t bits, int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23 | bits);
}

// Steps of 1 over all significands in one binade, and with a stride in the binades at the ends of what amax can be.
void divides(float greatest) {
  int wrong = 0;
  for (const auto& [exponent, step] :
       {std::pair{0, 1u}, {-100, 61u}, {-60, 61u}, {60, 61u}, {127, 61u}}) {
    for (uint32_t bits = 0; bits < 1u << 23; bits += step) {
      const float amax = significand(bits, exponent);
      wrong += divide_by_greatest(amax, greatest, 1.0f / greatest) != amax / greatest;
    }
  }
  EXPECT_EQ(wrong, 0) << "amax / " << greatest;
}

TEST(QuantArithmetic, ScalesAreCorrectlyRounded) {
  divides(448.0f);
  divides(57344.0f);
  divides(127.0f);
}

TEST(QuantArithmetic, SpecialAmax) {
  const float inf = INFINITY;
  EXPECT_EQ(divide_by_greatest(inf, 448.0f, 1.0f / 448.0f), inf);
  EXPECT_TRUE(std::isnan(divide_by_greatest(NAN, 448.0f, 1.0f / 448.0f)));
  EXPECT_EQ(fastnorm::cuda::inverse_of_scale(inf), 0.0f);
  EXPECT_TRUE(std::isnan(fastnorm::cuda::inverse_of_scale(NAN)));
}

// All codes of e2m1, their neighbours and the ties between them.
TEST(QuantArithmetic, E2m1RoundsToNearestEven) {
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint32_t code = 0; code < 8; ++code) {
    EXPECT_EQ(fastnorm::ptx::to_e2m1(kValues[code]), code);
    EXPECT_EQ(fastnorm::ptx::to_e2m1(-kValues[code]), code | 8);
    if (code == 7) continue;
    const float tie = (kValues[code] + kValues[code + 1]) / 2;
    EXPECT_EQ(fastnorm::ptx::to_e2m1(tie), code % 2 == 0 ? code : code + 1) << tie;
    EXPECT_EQ(fastnorm::ptx::to_e2m1(std::nextafter(tie, 0.0f)), code) << tie;
    EXPECT_EQ(fastnorm::ptx::to_e2m1(std::nextafter(tie, 8.0f)), code + 1) << tie;
  }
  EXPECT_EQ(fastnorm::ptx::to_e2m1(1e30f), 7u);
  EXPECT_EQ(fastnorm::ptx::to_e2m1(INFINITY), 7u);
  EXPECT_EQ(fastnorm::ptx::to_e2m1(1e-30f), 0u);
}

}  // namespace
