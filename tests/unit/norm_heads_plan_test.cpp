// The CUDA kernels of norm_heads and how planning chooses among them, for every architecture.
#include "core/norm_heads_plan.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cuda/arch.h"
#include "cuda/norm_heads/table.h"
#include "unit/norm_heads_request.h"

namespace fastnorm {
namespace {

using test::HeadsRequest;

DeviceFacts facts_of(const ArchSpec& arch) {
  DeviceFacts facts;
  facts.device_type = FASTNORM_DEVICE_CUDA;
  facts.arch = &arch;
  facts.multiprocessors = 132;
  return facts;
}

NormHeadsPlan plan_of(HeadsRequest r, const ArchSpec& arch) {
  NormHeadsDesc d;
  NormHeadsPlan plan;
  Error error;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(plan_norm_heads(d, facts_of(arch), cuda::norm_heads_table(arch), &plan, error),
            FASTNORM_OK)
      << error.text;
  return plan;
}

TEST(NormHeadsPlan, KernelsAreFewEnough) {
  for (const ArchSpec* arch : cuda::kArchs) {
    const size_t count = cuda::norm_heads_table(*arch).size();
    EXPECT_LE(count, arch == &cuda::kSm90 ? 120u : 60u) << arch->name;
    EXPECT_GT(count, 0u) << arch->name;
  }
}

TEST(NormHeadsPlan, NamesAreUniqueAndWordsHoldAllNumbers) {
  for (const ArchSpec* arch : cuda::kArchs) {
    std::set<std::string> names;
    for (const NormHeadsEntry& entry : cuda::norm_heads_table(*arch)) {
      EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
      EXPECT_EQ(heads_variant_of(entry.order), entry.variant) << entry.name;
    }
  }
}

// 7 tokens of 8, 2 and 2 heads of 128.
TEST(NormHeadsPlan, GeneralForm) {
  for (const ArchSpec* arch : {&cuda::kSm80, &cuda::kSm100, &cuda::kSm120, &cuda::kPtx}) {
    const NormHeadsPlan plan = plan_of(test::heads_request(), *arch);
    EXPECT_STREQ(plan.kernel, "norm_heads bf16 general") << arch->name;
    EXPECT_EQ(plan.blocks, 7u + 2 + 2) << arch->name << ": 8 heads a block";
    EXPECT_EQ(plan.first_block[1], 7u);
    EXPECT_EQ(plan.first_block[2], 9u);
  }
}

TEST(NormHeadsPlan, RowNumbersHave32Bits) {
  NormHeadsDesc d;
  NormHeadsPlan plan;
  Error error;
  ASSERT_EQ(test::heads_request().check(&d, error), FASTNORM_OK) << error.text;
  d.parts[1].norm.rows = int64_t{1} << 32;
  EXPECT_EQ(
      plan_norm_heads(d, facts_of(cuda::kSm90), cuda::norm_heads_table(cuda::kSm90), &plan, error),
      FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(error.text).find("parts[1].x has 4294967296 rows"), std::string::npos)
      << error.text;
}

}  // namespace
}  // namespace fastnorm
