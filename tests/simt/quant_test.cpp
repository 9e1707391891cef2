// The arithmetic of the GPU's quantising sink that no instruction gives exactly, tried on every
// significand.
#include "simt/cuda_words.h"
//
#include <gtest/gtest.h>

#include <vector>

#include "cuda/norm/quant.cuh"

namespace {

using fastnorm::cuda::divide_by_greatest;

float significand(uint32_t bits, int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23 | bits);
}

// Steps of 1 over all significands in one binade, and with a stride in the binades at the ends of
// what amax can be.
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

// Quotients of random values and of neighbours of ties, by scales of all exponents: the same code
// as of the division.
TEST(QuantArithmetic, CodesOfQuotients) {
  uint64_t state = 1;
  const auto next = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 32);
  };
  int64_t inexact = 0, wrong = 0;
  for (int scales = 0; scales < 20000; ++scales) {
    const float scale = std::bit_cast<float>(next());
    const fastnorm::cuda::CodeDivisor by(scale);
    for (int i = 0; i < 50; ++i) {
      float z = std::bit_cast<float>(next());
      if (i % 2 == 0)
        z = scale *
            std::ldexp(static_cast<float>(next() % 2048), static_cast<int>(next() % 24) - 20);
      if (i % 4 == 0) z = std::nextafter(z, INFINITY);
      const float exact = z / scale, found = by.quotient(z);
      inexact += found != exact && !std::isnan(exact);
      wrong +=
          (fastnorm::ptx::cvt_e5m2x2(found, found) != fastnorm::ptx::cvt_e5m2x2(exact, exact)) +
          (fastnorm::ptx::cvt_e4m3x2(found, found) != fastnorm::ptx::cvt_e4m3x2(exact, exact));
      const bool in_range = std::fabs(exact) >= 0x1p-39f && std::fabs(exact) < 0x1p16f;
      EXPECT_TRUE(!in_range || found == exact) << z << " / " << scale;
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(inexact, 0) << "the ends of the range were not tried";
  const float inf = INFINITY;
  EXPECT_EQ(fastnorm::cuda::CodeDivisor(inf).quotient(-3.0f), 0.0f);
  EXPECT_TRUE(std::signbit(fastnorm::cuda::CodeDivisor(inf).quotient(-3.0f)));
  EXPECT_TRUE(std::isnan(fastnorm::cuda::CodeDivisor(inf).quotient(inf)));
  EXPECT_EQ(fastnorm::cuda::CodeDivisor(0.0f).quotient(3.0f), inf);
  EXPECT_TRUE(std::isnan(fastnorm::cuda::CodeDivisor(0.0f).quotient(0.0f)));
  EXPECT_TRUE(std::isnan(fastnorm::cuda::CodeDivisor(NAN).quotient(1.0f)));
  EXPECT_TRUE(std::signbit(fastnorm::cuda::CodeDivisor(0.3f).quotient(-0.0f)));
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

// A vector at a time, at and around the ties, with both signs and in every position.
TEST(QuantArithmetic, E2m1OfVectorsIsTheSame) {
  std::vector<float> values = {0, 1e-40f, 1e-30f, 6.5f, std::nextafter(7.0f, 0.0f)};
  for (int quarters = 1; quarters <= 24; ++quarters) {
    const float v = static_cast<float>(quarters) / 4;
    values.insert(values.end(), {std::nextafter(v, 0.0f), v, std::nextafter(v, 8.0f)});
  }
  for (size_t first = 0; first < values.size(); ++first) {
    for (const float scale : {1.0f, 0x1p-20f, 0x1p60f}) {
      float v[8], four[4];
      uint32_t expected = 0;
      for (size_t i = 0; i < 8; ++i) {
        const float magnitude = values[(first + i) % values.size()];
        v[i] = (first + i) % 3 == 0 ? -magnitude : magnitude;
        expected |= fastnorm::ptx::to_e2m1(v[i]) << 4 * i;
        v[i] *= scale;
        if (i < 4) four[i] = v[i];
      }
      if (scale < 1.0f && (first > values.size() - 8 || first < 3))
        EXPECT_EQ(fastnorm::ptx::to_e2m1_below_7(v, 1.0f / scale), expected) << first;
      EXPECT_EQ(fastnorm::ptx::to_e2m1_below_7(four, 1.0f / scale), expected & 0xffff) << first;
      EXPECT_EQ(fastnorm::ptx::to_e2m1_below_7(v, -1.0f / scale), expected ^ 0x88888888) << first;
    }
  }
}

// All codes of e4m3, by the definition of the format.
TEST(QuantArithmetic, E4m3Values) {
  for (uint32_t code = 0; code < 0x7f; ++code) {
    const int exponent = static_cast<int>(code >> 3), fraction = static_cast<int>(code & 7);
    const float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                      : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    EXPECT_EQ(fastnorm::ptx::from_e4m3(code), value) << code;
  }
  EXPECT_TRUE(std::isnan(fastnorm::ptx::from_e4m3(0x7f)));
}

// NVFP4 rounds 1 / G and its sixth. Here the quotient is 431.99999, just below the middle of 416
// and 448; 1 / (6 G) rounded at once would make it 432, whose nearest even code is that of 448.
TEST(QuantArithmetic, Nvfp4RoundsTheReciprocalFirst) {
  const fastnorm::cuda::Nvfp4Scales scales(0.0037f);
  EXPECT_EQ(scales.make(std::bit_cast<uint32_t>(9.5903997f)).bits, 0x7du);
}

// The least power of two that holds a magnitude, at and around its bounds.
TEST(QuantArithmetic, ScalesOfPowersOfTwo) {
  fastnorm::cuda::QuantParams q = {};
  q.scale_type = fastnorm::ScaleType::kE8M0;
  for (const int k : {8, 15, 2}) {
    q.greatest_exponent = k;
    q.exponent_carry = k == 2 ? 0x3fffff : 0x1fffff;
    for (int e = -120; e <= 127 - k; ++e) {
      const float bound = std::ldexp(k == 2 ? 1.5f : 1.75f, k + e);
      const auto byte = [&](float magnitude) {
        return fastnorm::cuda::pow2_scale(q, std::bit_cast<uint32_t>(magnitude)).bits;
      };
      EXPECT_EQ(byte(bound), static_cast<uint32_t>(e + 127));
      EXPECT_EQ(byte(std::nextafter(bound, INFINITY)), static_cast<uint32_t>(e + 128));
    }
    const auto inf = fastnorm::cuda::pow2_scale(q, 0x7f800000);
    EXPECT_EQ(inf.bits, 254u);
    EXPECT_EQ(inf.inverse, 0x1p-127f);
    const auto zero = fastnorm::cuda::pow2_scale(q, 0);
    EXPECT_EQ(zero.bits, 0u);
    EXPECT_EQ(zero.inverse, 0x1p127f);
    EXPECT_EQ(fastnorm::cuda::pow2_scale(q, 0x7fc00000).bits, 255u);
  }
}

}  // namespace
