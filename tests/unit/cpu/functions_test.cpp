// exp, sigmoid, silu and tanh of every instruction set have the bits of the specification.
#include "ref/functions.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support/functions.h"
#include "unit/cpu/levels.h"

void functions_scalar(int which, const float* x, float* y, int64_t n);
void functions_avx2(int which, const float* x, float* y, int64_t n);
void functions_avx512(int which, const float* x, float* y, int64_t n);
void functions_neon(int which, const float* x, float* y, int64_t n);

namespace fastnorm::test {
namespace {

using OfLevel = void (*)(int which, const float* x, float* y, int64_t n);

OfLevel functions_of(const std::string& level) {
#if defined(__x86_64__)
  if (level == "avx2") return functions_avx2;
#ifndef FASTNORM_WITHOUT_AVX512
  if (level == "avx512") return functions_avx512;
#endif
#elif defined(__aarch64__)
  if (level == "neon") return functions_neon;
#endif
  return level == "scalar" ? functions_scalar : nullptr;
}

TEST(Functions, EveryLevelHasTheBitsOfTheSpecification) {
  const std::vector<float> x = function_arguments(4093);
  constexpr float (*kSpecified[])(float) = {ref::exponential, ref::sigmoid, ref::silu,
                                            ref::hyperbolic_tangent};
  std::vector<float> y(x.size());
  for (const Level& level : runnable_levels()) {
    if (level.avx512_bf16) continue;
    const OfLevel functions = functions_of(level.name);
    ASSERT_NE(functions, nullptr) << level.name;
    for (int which = 0; which < 4; ++which) {
      functions(which, x.data(), y.data(), static_cast<int64_t>(x.size()));
      for (size_t i = 0; i < x.size(); ++i) {
        const float wanted = kSpecified[which](x[i]);
        const bool same =
            std::isnan(wanted) ? std::isnan(y[i]) : std::memcmp(&wanted, &y[i], sizeof wanted) == 0;
        ASSERT_TRUE(same) << level.name << " function " << which << " of " << std::hexfloat << x[i]
                          << ": " << y[i] << ", specified: " << wanted;
      }
    }
  }
}

}  // namespace
}  // namespace fastnorm::test
