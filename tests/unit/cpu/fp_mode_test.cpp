// Each family computes in the floating-point mode of the specification, whatever the caller has
// set: subnormal inputs give subnormal results, which a flush to zero would lose. All results are
// exact.
#include <gtest/gtest.h>

#include <vector>

#include "cpu/isa.h"
#include "fastnorm/fastnorm.h"
#include "unit/cpu/environment.h"
#include "unit/cpu/odd_modes.h"

namespace fastnorm::test {
namespace {

constexpr float kTiny = 0x1p-130f;  // subnormal, about 7e-40
constexpr int64_t kColumns = 4;

// A compact f32 tensor with its values.
struct Values {
  Values(std::vector<int64_t> extents, std::vector<float> given)
      : shape(std::move(extents)), value(std::move(given)) {
    tensor.data = value.data();
    tensor.device_type = FASTNORM_DEVICE_CPU;
    tensor.ndim = static_cast<int32_t>(shape.size());
    tensor.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    tensor.shape = shape.data();
  }
  Values(const Values&) = delete;

  std::vector<int64_t> shape;
  std::vector<float> value;
  fastnorm_tensor tensor = {};
};

// A row whose mean of squares is 1, and so is its rstd.
const std::vector<float> kRow = {1, -1, 1, -1}, kOnes = {1, 1, 1, 1}, kUnset = {7, 7, 7, 7},
                         kTinies = {kTiny, kTiny, kTiny, kTiny},
                         kTinyRow = {kTiny, -kTiny, kTiny, -kTiny},
                         // A gradient, and what becomes of it: each element less xhat times the
    // mean of all elements times xhat, which is kTiny.
    kTinyGradient = {4 * kTiny, 0, 0, 0}, kTinyDx = {3 * kTiny, kTiny, -kTiny, kTiny};

// Runs call(context, workspace, bytes) in each odd mode with each instruction set.
template <class Call>
void expect_in_all_modes(Values& found, const std::vector<float>& wanted, Call call) {
  alignas(256) static char workspace[1 << 16];
  for (const cpu::IsaKernels& isa : cpu::built_isas()) {
    if (isa.isa > cpu::machine_features().best) continue;
    SCOPED_TRACE(isa.name);
    const Variable forced("FASTNORM_CPU_ISA", isa.name);
    fastnorm_context* context = nullptr;
    ASSERT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CPU, 0}, nullptr, &context), FASTNORM_OK);
    for (const uint64_t odd : kOddModes) {
      found.value = kUnset;
      found.tensor.data = found.value.data();
      bool kept = false;
      const fastnorm_status status = in_fp_mode(
          odd, &kept, [&] { return call(context, workspace, size_t{sizeof workspace}); });
      EXPECT_EQ(status, FASTNORM_OK) << fastnorm_last_error();
      EXPECT_TRUE(kept) << std::hex << odd;
      EXPECT_EQ(found.value, wanted) << std::hex << odd;
    }
    fastnorm_context_destroy(context);
  }
}

template <class Args>
Args empty() {
  Args args = {};
  args.struct_size = sizeof args;
  return args;
}

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

TEST(FpMode, HeadsAreInThatOfTheSpecification) {
  Values x({1, 1, kColumns}, kRow), weight({kColumns}, kTinies), y({1, 1, kColumns}, kUnset);
  auto part = empty<fastnorm_norm_heads_part>();
  part.flags = FASTNORM_NORM_HEADS_NORM;
  part.x = &x.tensor, part.weight = &weight.tensor, part.y = &y.tensor;
  const auto args = empty<fastnorm_norm_heads_args>();
  const fastnorm_norm_heads_part* parts[] = {&part};
  expect_in_all_modes(y, kTinyRow, [&](fastnorm_context* context, void*, size_t) {
    return fastnorm_norm_heads(context, &args, parts, 1, nullptr, 0, nullptr);
  });
}

TEST(FpMode, GradientsOfHeadsAreInThatOfTheSpecification) {
  Values x({1, 1, kColumns}, kRow), dy({1, 1, kColumns}, kTinyGradient), rstd({1, 1}, {1}),
      dx({1, 1, kColumns}, kUnset);
  auto part = empty<fastnorm_norm_heads_backward_part>();
  part.flags = FASTNORM_NORM_HEADS_NORM;
  part.x = &x.tensor, part.dy = &dy.tensor, part.rstd = &rstd.tensor, part.dx = &dx.tensor;
  const auto args = empty<fastnorm_norm_heads_args>();
  const fastnorm_norm_heads_backward_part* parts[] = {&part};
  expect_in_all_modes(dx, kTinyDx, [&](fastnorm_context* context, void* workspace, size_t bytes) {
    return fastnorm_norm_heads_backward(context, &args, parts, 1, workspace, bytes, nullptr);
  });
}

}  // namespace
}  // namespace fastnorm::test
