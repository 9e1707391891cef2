// exp, sigmoid, silu and tanh of the GPU's source: the bits of the specification.
#include "simt/cuda_words.h"
//
#include <gtest/gtest.h>

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

}  // namespace
