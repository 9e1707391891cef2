// Each family computes in the floating-point mode of the specification, whatever the caller has
// set: subnormal inputs give subnormal results, which a flush to zero would lose. The tests of
// families have calls whose results are exact.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "cpu/isa.h"
#include "fastnorm/fastnorm.h"
#include "unit/cpu/environment.h"
#include "unit/cpu/odd_modes.h"

namespace fastnorm::test::fp_modes {

inline constexpr float kTiny = 0x1p-130f;  // subnormal, about 7e-40
inline constexpr int64_t kColumns = 4;

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
inline const std::vector<float> kRow = {1, -1, 1, -1}, kOnes = {1, 1, 1, 1}, kUnset = {7, 7, 7, 7};
inline const std::vector<float> kTinies = {kTiny, kTiny, kTiny, kTiny},
                                kTinyRow = {kTiny, -kTiny, kTiny, -kTiny};
// A gradient, and what becomes of it: each element less xhat times the mean of all elements times
// xhat, which is kTiny.
inline const std::vector<float> kTinyGradient = {4 * kTiny, 0, 0, 0},
                                kTinyDx = {3 * kTiny, kTiny, -kTiny, kTiny};

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

}  // namespace fastnorm::test::fp_modes
