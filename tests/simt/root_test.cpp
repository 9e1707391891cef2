// 1 / sqrt(v) from approximations that are worse than the one of the GPU at hand, which the
// self-test tries: another architecture's may be.
#include "simt/cuda_words.h"
//
#include <gtest/gtest.h>

#include "cuda/common/root.cuh"

namespace {

struct Count {
  int roots;  // that the approximation suffices for
  int wrong;  // of these, reciprocals that are not as two operations round them
};

// All significands of two octaves, which is all that there is but for even powers of two.
Count count(int units) {
  fastnorm::ptx::rsqrt_units = units;
  Count c = {0, 0};
  for (uint32_t bits = 0x3f800000; bits < 0x40800000; ++bits) {
    const auto v = std::bit_cast<float>(bits);
    const float r = fastnorm::ptx::rsqrt_approx(v), g = v * r;
    const float root = std::sqrt(v);
    if (std::fma(std::fma(-g, g, v), r * 0.5f, g) != root) continue;
    ++c.roots;
    c.wrong += fastnorm::cuda::reciprocal_root_in_range(v) != 1.0f / root;
  }
  fastnorm::ptx::rsqrt_units = 0;
  return c;
}

TEST(Root, ReciprocalIsRightWhereverTheRootIs) {
  for (int units = -4; units <= 4; ++units) {
    const Count c = count(units);
    EXPECT_GE(c.roots, (1 << 24) - (units == 0 ? 0 : 50)) << units;
    EXPECT_EQ(c.wrong, 0) << units << " units from the nearest approximation";
  }
}

TEST(Root, EndsOfTheRange) {
  const float inf = INFINITY;
  for (const float v : {0x1p-149f, 0x1p-148f, 0x1.8p-127f, 0x1p-126f, 0x1p-90f, 0x1.000002p-90f,
                        0x1p90f, 0x1.fffffep89f, 0x1.fffffep127f, inf}) {
    EXPECT_EQ(fastnorm::cuda::reciprocal_root(v), 1.0f / std::sqrt(v)) << v;
  }
  EXPECT_EQ(fastnorm::cuda::reciprocal_root(0.0f), inf);
  EXPECT_TRUE(std::isnan(fastnorm::cuda::reciprocal_root(NAN)));
}

}  // namespace
