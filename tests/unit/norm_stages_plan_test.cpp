// Which kernel a norm call with stages runs on, and the lists of kernels.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "core/norm_check.h"
#include "core/norm_plan.h"
#include "core/norm_stages.h"
#include "cuda/arch.h"
#include "cuda/norm/table.h"
#include "cuda/norm_stages/table.h"

namespace fastnorm::test {
namespace {

constexpr uintptr_t kPlace = uintptr_t{1} << 40;

// Rows of T with an activation.
NormDesc described(Dtype dtype, int64_t rows, int64_t n) {
  NormDesc d;
  d.rows = d.outer[0] = rows;
  d.n = n;
  d.dtype = dtype;
  d.x.data = reinterpret_cast<std::byte*>(kPlace);
  d.x.stride_bytes[0] = n * dtype_bytes(dtype);
  d.x.dtype = dtype;
  d.y = d.x;
  d.has_stages = true;
  d.stages.group = n;
  d.stages.activation = FASTNORM_ACTIVATION_SILU;
  return d;
}

TEST(StagesPlan, KernelsOfEachArchitecture) {
  for (const ArchSpec* arch : cuda::kArchs) {
    const DeviceFacts facts = cuda::make_facts(*arch, 0, 100, arch->max_cluster_blocks);
    const struct {
      Dtype dtype;
      int64_t rows, n;
      const char* kernel;
      uint64_t blocks;
    } calls[] = {
        {Dtype::kBF16, 1, 1, "bf16 stages 32xstream", 1},
        {Dtype::kBF16, 9, 1024, "bf16 stages 32xstream", 3},
        {Dtype::kBF16, 9, 1025, "bf16 stages 256xstream", 9},
        {Dtype::kF16, 4096, 200000, "f16 stages 256xstream", 4096},
        {Dtype::kF32, 8, 512, "f32 stages 32xstream", 2},
        {Dtype::kF32, 8, 513, "f32 stages 256xstream", 8},
    };
    for (const auto& call : calls) {
      const NormDesc d = described(call.dtype, call.rows, call.n);
      NormPlan plan;
      Error error;
      ASSERT_EQ(make_plan(d, facts, cuda::norm_table(*arch), &plan, error), FASTNORM_OK)
          << error.text;
      EXPECT_STREQ(plan.entry->name, call.kernel) << arch->name;
      EXPECT_EQ(plan.blocks, call.blocks) << arch->name;
      EXPECT_EQ(plan.workspace_bytes, 0u);
      EXPECT_EQ(plan.bytes_read,
                static_cast<uint64_t>(call.rows * call.n * dtype_bytes(call.dtype)));
      EXPECT_EQ(plan.entry, &arch->stages->entries[plan.index].norm);
      EXPECT_EQ(std::strncmp(cuda::variant_text(*plan.entry), "V(kGeneral, ALL", 15), 0);
    }
  }
}

TEST(StagesPlan, RefusesWhatAGridCannotNumber) {
  const DeviceFacts facts = cuda::make_facts(cuda::kSm90, 0, 132, 8);
  NormPlan plan;
  Error error;
  NormDesc d = described(Dtype::kBF16, int64_t{1} << 32, 64);
  EXPECT_EQ(make_plan(d, facts, {}, &plan, error), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(error.text, "x has 4294967296 rows"), nullptr) << error.text;
  d = described(Dtype::kBF16, int64_t{1} << 31, 4096);
  EXPECT_EQ(make_plan(d, facts, {}, &plan, error), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(error.text, "a grid holds 2147483647"), nullptr) << error.text;
  d = described(Dtype::kBF16, 1, int64_t{1} << 32);
  EXPECT_EQ(make_plan(d, facts, {}, &plan, error), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(error.text, "rows of 4294967296 elements"), nullptr) << error.text;
}

TEST(StagesPlan, GivenKernelsServeTheirDtype) {
  const DeviceFacts facts = cuda::make_facts(cuda::kSm90, 0, 132, 8);
  const NormDesc d = described(Dtype::kF16, 8, 64);
  int served = 0;
  for (int32_t i = 0; i < facts.arch->stages->count; ++i) {
    NormPlan plan;
    Error error;
    const StagesVariant& v = facts.arch->stages->entries[i].variant;
    const bool serves = plan_stages_for(d, facts, i, &plan, error) == FASTNORM_OK;
    EXPECT_TRUE(!serves || v.dtype == Dtype::kF16) << facts.arch->stages->entries[i].norm.name;
    EXPECT_TRUE(serves || v.dtype != Dtype::kF16 || v.form != StagesForm::kGeneral);
    EXPECT_TRUE(!serves || plan.index == i);
    served += serves ? 1 : 0;
  }
  EXPECT_EQ(served, 2);
}

TEST(StagesPlan, ListsAreSortedAndNamesAreUnique) {
  for (const ArchSpec* arch : cuda::kArchs) {
    std::set<std::string> names;
    uint32_t before = 0;
    for (const StagesEntry& entry : cuda::norm_stages_table(*arch)) {
      const uint32_t word = packed(entry.variant);
      EXPECT_TRUE(names.empty() || before < word) << entry.norm.name;
      EXPECT_EQ(stages_variant_of(word), entry.variant) << entry.norm.name;
      EXPECT_TRUE(names.insert(entry.norm.name).second) << entry.norm.name;
      before = word;
    }
    EXPECT_EQ(names.size(), cuda::norm_stages_entries(*arch).size());
  }
}

}  // namespace
}  // namespace fastnorm::test
