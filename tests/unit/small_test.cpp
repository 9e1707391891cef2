// The small parts of core: dtypes, error texts, kernel names, 1 / n.
#include <gtest/gtest.h>

#include <cfenv>
#include <cstring>
#include <set>
#include <string>

#include "core/common/dtype.h"
#include "core/common/error.h"
#include "core/common/reciprocal.h"
#include "core/norm/key.h"
#include "cuda/arch.h"
#include "cuda/families.h"
#include "cuda/gpu_device.h"
#include "cuda/norm/launch_params.h"
#include "unit/norm/request.h"

namespace fastnorm::test {
namespace {

TEST(Dtypes, EachRowOfTheTable) {
  std::set<std::string> names;
  for (int i = 0; i < static_cast<int>(Dtype::kUnknown); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    const fastnorm_dtype abi = fastnorm_dtype_of(kDtypes[i].id);
    EXPECT_EQ(dtype_from(abi), dtype) << kDtypes[i].name;
    EXPECT_EQ(dtype_id(abi), static_cast<uint32_t>(kDtypes[i].id));
    EXPECT_EQ(abi.bits * abi.lanes, kDtypes[i].bits) << kDtypes[i].name;
    EXPECT_TRUE(names.insert(dtype_name(dtype)).second) << kDtypes[i].name << " twice";
    EXPECT_EQ(dtype_bytes(dtype), kDtypes[i].bits / 8);
  }
  EXPECT_STREQ(dtype_name(Dtype::kUnknown), "unknown");
}

TEST(Dtypes, WhatIsNotInTheTable) {
  for (const fastnorm_dtype dtype : {fastnorm_dtype{2, 64, 1}, fastnorm_dtype{2, 32, 2},
                                     fastnorm_dtype{2, 32, 0}, fastnorm_dtype{255, 255, 65535}}) {
    EXPECT_EQ(dtype_from(dtype), Dtype::kUnknown);
  }
}

// As the processor divides, which rounds to nearest even here.
TEST(Reciprocal, IsTheQuotient) {
  const auto expect_quotient = [](int64_t n) {
    const volatile float divisor = static_cast<float>(n);
    ASSERT_EQ(reciprocal_of(n), 1.0f / divisor) << n;
  };
  for (int64_t n = 1; n <= 1 << 20; ++n) expect_quotient(n);
  for (int shift = 20; shift < 62; ++shift) {
    for (int64_t near = -70; near <= 70; ++near) {
      expect_quotient((int64_t{1} << shift) + near);
      // Near the middle between two neighbouring f32 values, which ties decide.
      expect_quotient((int64_t{1} << shift) +
                      (int64_t{1} << (shift - 24 > 0 ? shift - 24 : 0)) * near);
    }
  }
}

// The parameters of a GPU kernel do not depend on the calling thread's rounding mode.
TEST(Reciprocal, ParametersInAnyRoundingMode) {
  Request r = simple_request({4, 4099}, FASTNORM_DTYPE_BF16);
  r.quant.scheme = FASTNORM_QUANT_PER_ROW;
  r.quantized = RequestTensor{{4, 4099}, {}, FASTNORM_DTYPE_F8_E4M3FN, address_of(12)};
  r.scale = RequestTensor{{4}, {}, FASTNORM_DTYPE_F32, address_of(13)};
  const auto numbers = [&] {
    NormDesc desc;
    NormPlan plan;
    Error error;
    EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
    EXPECT_EQ(make_plan(desc, cuda::make_facts(cuda::kSm90, 0, 132, 16),
                        cuda::table_of<cuda::NormFamily>(cuda::kSm90), &plan, error),
              FASTNORM_OK);
    const cuda::NormParams p = cuda::make_params(desc, plan);
    return std::pair(p.inv_n, p.quant.inverse_greatest);
  };
  const auto wanted = numbers();
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const auto found = numbers();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(found, wanted) << mode;
  }
}

TEST(Errors, FormatAndPrefix) {
  Error error;
  error.device_error = 7;
  EXPECT_EQ(error.set(FASTNORM_ERROR_SHAPE, "n is %d", 3), FASTNORM_ERROR_SHAPE);
  EXPECT_STREQ(error.text, "n is 3");
  EXPECT_EQ(error.device_error, 0) << "not the device's fault";
  error.prefix = "args[2].";
  error.set(FASTNORM_ERROR_DTYPE, "x.dtype is %s", "i8");
  EXPECT_STREQ(error.text, "args[2].x.dtype is i8");
  EXPECT_EQ(error.status, FASTNORM_ERROR_DTYPE);
}

TEST(Errors, LongTextsAreCutNotOverrun) {
  Error error;
  const std::string text(5000, 'a');
  error.prefix = "prefix ";
  error.set(FASTNORM_ERROR_SHAPE, "%s", text.c_str());
  EXPECT_EQ(std::strlen(error.text), sizeof error.text - 1);
  EXPECT_STREQ(std::string(error.text).substr(0, 9).c_str(), "prefix aa");
}

TEST(Kernels, NamesAndOrder) {
  const NormKey key{Dtype::kBF16, Source::kAdd, Stat::kLayer,
                    Affine::kAny, Sink::kStore, Access::kAny};
  EXPECT_STREQ(make_entry(key, {256, 4, 1}).name, "bf16 add layer any store any 256x4");
  EXPECT_STREQ(make_entry(key, {512, 8, 8}).name, "bf16 add layer any store any 512x8x8");
  EXPECT_STREQ(make_entry(key, {256, 0, 8}).name, "bf16 add layer any store any 256xstreamx8");
  EXPECT_STREQ(make_entry(NormKey{}, {}).name, "f32 plain rms once store vector");
  EXPECT_LT(make_entry(key, {128, 4, 1}).packed(), make_entry(key, {256, 1, 1}).packed());
  EXPECT_LT(make_entry(NormKey{}, {1024, 8, 8}).packed(), make_entry(key, {4, 1, 1}).packed());
}

}  // namespace
}  // namespace fastnorm::test
