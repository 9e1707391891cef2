// Norms and their gradients in odd floating-point modes.
#include "unit/cpu/fp_mode.h"

#include <gtest/gtest.h>

#include "fastnorm/fastnorm.h"

namespace fastnorm::test {
namespace {

using namespace fp_modes;

// With a gate, whose function is 1, the kernels are those of calls with stages.
TEST(FpMode, NormsAreInThatOfTheSpecification) {
  for (const bool gated : {false, true}) {
    Values x({1, kColumns}, kRow), weight({kColumns}, kTinies), gate({1, kColumns}, kOnes),
        y({1, kColumns}, kUnset);
    auto args = empty<fastnorm_norm_args>();
    args.x = &x.tensor, args.weight = &weight.tensor, args.y = &y.tensor;
    if (gated) args.gate = &gate.tensor;
    expect_in_all_modes(y, kTinyRow, [&](fastnorm_context* context, void* workspace, size_t bytes) {
      return fastnorm_norm(context, &args, workspace, bytes, nullptr);
    });
  }
}

TEST(FpMode, GradientsAreInThatOfTheSpecification) {
  Values x({1, kColumns}, kRow), dy({1, kColumns}, kTinyGradient), rstd({1}, {1}),
      weight({kColumns}, kOnes), dx({1, kColumns}, kUnset), dweight({kColumns}, kUnset);
  auto args = empty<fastnorm_norm_backward_args>();
  args.x = &x.tensor, args.dy = &dy.tensor, args.rstd = &rstd.tensor, args.weight = &weight.tensor;
  args.dx = &dx.tensor, args.dweight = &dweight.tensor;
  const auto call = [&](fastnorm_context* context, void* workspace, size_t bytes) {
    return fastnorm_norm_backward(context, &args, workspace, bytes, nullptr);
  };
  expect_in_all_modes(dx, kTinyDx, call);
  expect_in_all_modes(dweight, kTinyGradient, call);
}

}  // namespace
}  // namespace fastnorm::test
