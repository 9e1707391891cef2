// The reference of MLA decode against results computed by hand.
#include "ref/mla_decode_ref.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fastnorm::test {
namespace {

using ref::kMlaWidth;

TEST(MlaDecodeRef, AllowedTokens) {
  EXPECT_EQ(ref::mla_decode_allowed(10, 4, 0, false), 10);
  EXPECT_EQ(ref::mla_decode_allowed(10, 4, 0, true), 7);
  EXPECT_EQ(ref::mla_decode_allowed(10, 4, 3, true), 10);
  EXPECT_EQ(ref::mla_decode_allowed(2, 4, 0, true), 0);
  EXPECT_EQ(ref::mla_decode_allowed(2, 4, 1, true), 0);
  EXPECT_EQ(ref::mla_decode_allowed(2, 4, 2, true), 1);
  EXPECT_EQ(ref::mla_decode_allowed(0, 1, 0, true), 0);
  EXPECT_EQ(ref::mla_decode_allowed(0, 1, 0, false), 0);
}

TEST(MlaDecodeRef, EmptyRow) {
  const std::vector<float> q(kMlaWidth, 1.0f);
  const ref::MlaDecodeRow row = ref::mla_decode_row(q.data(), nullptr, 0, 1.0);
  EXPECT_EQ(row.lse, -INFINITY);
  for (const double v : row.o) EXPECT_EQ(v, 0);
}

// Scores log 1, log 2 and log 3: probabilities 1/6, 2/6 and 3/6.
TEST(MlaDecodeRef, ThreeTokens) {
  std::vector<float> q(kMlaWidth, 0.0f), latents(3 * kMlaWidth, 0.0f);
  q[3] = 1;              // of the latent
  q[kMlaWidth - 1] = 1;  // of the rope
  for (size_t j = 0; j < 3; ++j) {
    latents[j * kMlaWidth + 3] = static_cast<float>(std::log(j + 1.0) / 2);
    latents[j * kMlaWidth + kMlaWidth - 1] = static_cast<float>(std::log(j + 1.0) / 2);
    latents[j * kMlaWidth + 7] = j == 1 ? -6.0f : 6.0f;
  }
  const ref::MlaDecodeRow row = ref::mla_decode_row(q.data(), latents.data(), 3, 1.0);
  EXPECT_NEAR(row.lse, std::log(6.0), 1e-6);
  EXPECT_NEAR(row.o[7], 1.0 - 2.0 + 3.0, 1e-6);
  EXPECT_NEAR(row.magnitude[7], 6.0, 1e-6);
  EXPECT_NEAR(row.score_magnitude, std::log(3.0), 1e-6);
  EXPECT_EQ(row.o[8], 0);
  // Twice the scale: probabilities 1/14, 4/14 and 9/14.
  const ref::MlaDecodeRow twice = ref::mla_decode_row(q.data(), latents.data(), 3, 2.0);
  EXPECT_NEAR(twice.lse, std::log(14.0), 1e-6);
  EXPECT_NEAR(twice.o[7], (6.0 - 24.0 + 54.0) / 14, 1e-6);
  const ref::MlaDecodeRow two = ref::mla_decode_row(q.data(), latents.data(), 2, 1.0);
  EXPECT_NEAR(two.lse, std::log(3.0), 1e-6);
  EXPECT_NEAR(two.o[7], 2.0 - 4.0, 1e-6);
}

// Large scores do not overflow, and small ones do not lose their digits.
TEST(MlaDecodeRef, LargeScores) {
  std::vector<float> q(kMlaWidth, 0.0f), latents(2 * kMlaWidth, 0.0f);
  q[0] = 1000;
  latents[0] = 1;
  latents[kMlaWidth] = -1;
  latents[1] = latents[kMlaWidth + 1] = 5;
  const ref::MlaDecodeRow row = ref::mla_decode_row(q.data(), latents.data(), 2, 1.0);
  EXPECT_DOUBLE_EQ(row.lse, 1000);
  EXPECT_DOUBLE_EQ(row.o[0], 1);
  EXPECT_DOUBLE_EQ(row.o[1], 5);
  EXPECT_DOUBLE_EQ(row.faint[1], 5) << "of the second token, whose probability vanishes";
}

}  // namespace
}  // namespace fastnorm::test
