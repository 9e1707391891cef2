// The reference of MLA decode against results computed by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ref/mla_decode_ref.h"

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

// Half of the weight is the sink's.
TEST(MlaDecodeRef, Sink) {
  const std::vector<float> q(kMlaWidth, 0.0f), latents(2 * kMlaWidth, 3.0f);
  ref::MlaDecodeRow row = ref::mla_decode_row(q.data(), latents.data(), 2, 1.0);
  EXPECT_DOUBLE_EQ(row.o[0], 3);
  ref::add_mla_sink(std::log(2.0), &row);
  EXPECT_NEAR(row.o[0], 1.5, 1e-15);
  EXPECT_NEAR(row.magnitude[0], 1.5, 1e-15);
  EXPECT_NEAR(row.lse, std::log(2.0), 1e-15);
  ref::add_mla_sink(-INFINITY, &row);
  EXPECT_NEAR(row.o[0], 1.5, 1e-15);
  ref::add_mla_sink(INFINITY, &row);
  EXPECT_EQ(row.o[0], 0);
  ref::MlaDecodeRow none = ref::mla_decode_row(q.data(), nullptr, 0, 1.0);
  ref::add_mla_sink(-INFINITY, &none);
  EXPECT_EQ(none.o[0], 0);
}

// Codes 0x38 (1), 0x7e (448), 0x01 (2^-9), 0xc4 (-3) and 0x7f (NaN).
TEST(MlaDecodeRef, RowsOfBytes) {
  using ref::MlaFormat;
  using ref::Type;
  std::vector<std::byte> row(656, std::byte{0});
  row[0] = row[130] = row[575] = std::byte{0x38};
  row[1] = std::byte{0x7e};
  row[2] = std::byte{0x01};
  row[3] = std::byte{0xc4};
  row[511] = std::byte{0x7f};
  std::vector<float> values = ref::decode_mla_row(MlaFormat::k576, row.data(), 0.3f, Type::kF32);
  EXPECT_EQ(values[0], 0.3f);
  EXPECT_EQ(values[1], 448 * 0.3f);
  EXPECT_EQ(values[2], 0.3f / 512);
  EXPECT_EQ(values[3], 0.3f * -3);
  EXPECT_EQ(values[4], 0);
  EXPECT_EQ(values[575], 0.3f);
  EXPECT_TRUE(std::isnan(values[511]));
  values = ref::decode_mla_row(MlaFormat::k576, row.data(), 0.3f, Type::kBF16);
  EXPECT_EQ(values[0], 0.30078125f);
  EXPECT_EQ(values[1], 134) << "134.4, of which bf16 has the even numbers";

  const float scales[] = {2, 0.25f, 8, 16};
  std::memcpy(&row[512], scales, sizeof scales);
  const uint16_t one_and_half = 0x3fc0, minus_two = 0xc000;
  std::memcpy(&row[528], &one_and_half, 2);
  std::memcpy(&row[654], &minus_two, 2);
  values = ref::decode_mla_row(MlaFormat::k656, row.data(), 0, Type::kBF16);
  EXPECT_EQ(values[0], 2);
  EXPECT_EQ(values[1], 896);
  EXPECT_EQ(values[130], 0.25f);
  EXPECT_TRUE(std::isnan(values[511]));
  EXPECT_EQ(values[512], 1.5f);
  EXPECT_EQ(values[575], -2);

  // 448 codes, 64 of bf16, 7 exponents.
  std::memcpy(&row[448], &one_and_half, 2);
  std::memcpy(&row[574], &minus_two, 2);
  const uint8_t exponents[] = {128, 127, 120, 127, 127, 127, 127};
  std::memcpy(&row[576], exponents, sizeof exponents);
  values = ref::decode_mla_row(MlaFormat::k584, row.data(), 0, Type::kF16);
  EXPECT_EQ(values[0], 2);
  EXPECT_EQ(values[130], 1.0f / 128);
  EXPECT_EQ(values[448], 1.5f);
  EXPECT_EQ(values[511], -2);
  EXPECT_EQ(values[512], 0);
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
