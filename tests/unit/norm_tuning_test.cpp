// Tuning files: what they may say, and what planning makes of it.
#include "core/norm_tuning.h"

#include <gtest/gtest.h>

#include <string>

#include "cuda/arch.h"
#include "cuda/norm/launch_params.h"
#include "cuda/norm/table.h"
#include "unit/norm_request.h"

namespace fastnorm::test {
namespace {

const std::string kHead = "fastnorm tuning 1\nlibrary 1.2.3\narch sm_90\n";

DeviceFacts gpu(int32_t clusters = 16) { return cuda::make_facts(cuda::kSm90, 0, 132, clusters); }

std::span<const NormEntry> table() { return cuda::norm_table(cuda::kSm90); }

fastnorm_status read(const std::string& text, NormTuning* tuning, Error& error,
                     const DeviceFacts& facts = gpu()) {
  return NormTuning::read(text, "1.2.3", table(), facts, tuning, error);
}

NormTuning tuning_of(const std::string& rules, const DeviceFacts& facts = gpu()) {
  NormTuning tuning;
  Error error;
  EXPECT_EQ(read(kHead + rules, &tuning, error, facts), FASTNORM_OK) << error.text;
  return tuning;
}

// The kernel that a call is planned on.
std::string kernel_for(Request request, const NormTuning* tuning) {
  NormDesc desc;
  NormPlan plan;
  Error error;
  EXPECT_EQ(request.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(make_plan(desc, gpu(), table(), &plan, error, tuning), FASTNORM_OK) << error.text;
  return plan.entry->name;
}

// The same of RMSNorm.
std::string kernel_for(std::vector<int64_t> shape, const NormTuning* tuning,
                       fastnorm_dtype_id dtype = FASTNORM_DTYPE_BF16) {
  return kernel_for(simple_request(std::move(shape), dtype), tuning);
}

void expect_refused(const std::string& text, const std::string& wanted) {
  NormTuning tuning;
  Error error;
  EXPECT_EQ(read(text, &tuning, error), FASTNORM_ERROR_ARGUMENT) << text;
  EXPECT_NE(std::string(error.text).find(wanted), std::string::npos)
      << text << "\nsays: " << error.text << "\nnot: " << wanted;
  EXPECT_EQ(tuning.size(), 0u);
}

TEST(NormTuning, SaysWhatIsWrongAndWhere) {
  expect_refused("", "ends after 0 of the 3 lines");
  expect_refused("# only this\n\n", "ends after 0 of the 3 lines");
  expect_refused("fastnorm tuning 1\nlibrary 1.2.3", "ends after 2 of the 3 lines");
  expect_refused("fastnorm tuning 2\n",
                 "line 1 is \"fastnorm tuning 2\"; required: \"fastnorm tuning 1\"");
  expect_refused("fastnorm tuning 1\n# x\nlibrary 1.2.4\n",
                 "line 3 is \"library 1.2.4\"; required: \"library 1.2.3\"");
  expect_refused("fastnorm tuning 1\nlibrary 1.2.3\narch sm_80\n",
                 "line 3 is \"arch sm_80\"; required: \"arch sm_90\"");
  for (const char* line :
       {"norm", "norm 1", "norm 1 4096", "norm 0 4096 bf16 plain rms once store vector 256x2",
        "norm 2-1 4096 bf16 plain rms once store vector 256x2", "norm 1-0 4096 k", "norm - 4096 k",
        "norm -1 4096 k", "norm 1-2-3 4096 k", "norm 1 4096x k", "norm 1 -4096 k",
        "norm 9223372036854775808 1 k", "rows 1 4096 bf16 plain rms once store vector 256x2"}) {
    expect_refused(kHead + line,
                   std::string("line 4 is \"") + line + "\"; required: norm ROWS N KERNEL");
  }
  expect_refused(kHead + "norm 1 4096 bf16 plain rms once store vector 256x99\n",
                 "line 4 names kernel \"bf16 plain rms once store vector 256x99\"");
  // 256x2 holds 257 to 512 vectors of 8.
  for (const char* n : {"2048", "4097", "9223372036854775807"}) {
    expect_refused(kHead + "norm 1 " + n + " bf16 plain rms once store vector 256x2\n",
                   std::string("rows of ") + n +
                       " elements for kernel \"bf16 plain rms once store "
                       "vector 256x2\"; required: 2049 to 4096");
  }
  expect_refused(kHead +
                     "norm 1-8 4096 bf16 plain rms once store vector 256x2\n"
                     "norm 8-9 4096 bf16 plain rms once store vector 128x4\n",
                 "for 8 rows of 4096 elements; required: one");
  expect_refused(kHead + std::string(5000, 'x'), std::string(80, 'x') + "\"; required: norm");
}

TEST(NormTuning, HasItsKernelsForItsShapes) {
  const std::string few = "bf16 plain rms once store vector bare 128x4",
                    many = "bf16 plain rms once store vector bare 256x2";
  ASSERT_EQ(kernel_for({4, 4096}, nullptr), many);  // the ladder's, the other way round
  ASSERT_EQ(kernel_for({2000, 4096}, nullptr), few);
  const NormTuning tuning =
      tuning_of("# a comment\r\n\r\n  norm\t2-8  4096 " + few + " \r\nnorm 5000- 4096 " + many +
                "\nnorm 2000 4096 " + many + "\nnorm 1-100 2048 " +
                "bf16 plain rms once store vector 128x2\n");
  EXPECT_EQ(tuning.size(), 4u);
  for (const int64_t rows : {2, 4, 8}) EXPECT_EQ(kernel_for({rows, 4096}, &tuning), few) << rows;
  for (const int64_t rows : {2000, 5000, 1 << 20})
    EXPECT_EQ(kernel_for({rows, 4096}, &tuning), many) << rows;
  for (const int64_t rows : {1, 9, 1999, 2001, 4999})
    EXPECT_EQ(kernel_for({rows, 4096}, &tuning), kernel_for({rows, 4096}, nullptr)) << rows;
  EXPECT_EQ(kernel_for({2, 2, 4096}, &tuning), few);  // four rows, however they are counted
  EXPECT_EQ(kernel_for({100, 2048}, &tuning), "bf16 plain rms once store vector 128x2");
  // Another n, another dtype, another key.
  EXPECT_EQ(kernel_for({4, 4088}, &tuning), kernel_for({4, 4088}, nullptr));
  EXPECT_EQ(kernel_for({4, 4096}, &tuning, FASTNORM_DTYPE_F16),
            kernel_for({4, 4096}, nullptr, FASTNORM_DTYPE_F16));
  EXPECT_EQ(kernel_for({4, 4095}, &tuning), kernel_for({4, 4095}, nullptr));
}

// A rule of a kernel for wide rows is for calls that have them; of one for vectors, for both, unless there is the other, too.
TEST(NormTuning, WideRowsHaveRulesOfTheirOwn) {
  const DeviceFacts facts = cuda::make_facts(cuda::kSm100, 0, 132, 16);
  const std::span<const NormEntry> wide_table = cuda::norm_table(cuda::kSm100);
  const std::string key = "bf16 plain rms once store ";
  const auto kernels = [&](const std::string& rules) {  // of a call with wide rows, and of another
    NormTuning tuning;
    Error error;
    EXPECT_EQ(NormTuning::read("fastnorm tuning 1\nlibrary 1.2.3\narch sm_100f\n" + rules, "1.2.3",
                               wide_table, facts, &tuning, error),
              FASTNORM_OK)
        << error.text;
    std::vector<std::string> names;
    for (const uintptr_t shift : {0, 16}) {
      Request r = simple_request({2000, 4096}, FASTNORM_DTYPE_BF16);
      r.y->address += shift;
      NormDesc desc;
      NormPlan plan;
      EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
      EXPECT_EQ(make_plan(desc, facts, wide_table, &plan, error, &tuning), FASTNORM_OK);
      names.push_back(plan.entry->name);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(kernels(""), (Names{key + "wide 128x4", key + "vector bare 128x4"}));
  const std::string wide = "norm 1- 4096 " + key + "wide 256x2\n",
                    vector = "norm 1- 4096 " + key + "vector 256x2\n";
  EXPECT_EQ(kernels(wide), (Names{key + "wide 256x2", key + "vector bare 128x4"}));
  EXPECT_EQ(kernels(vector), (Names{key + "vector 256x2", key + "vector 256x2"}));
  EXPECT_EQ(kernels(vector + wide), (Names{key + "wide 256x2", key + "vector 256x2"}));
}

// Kernels that keep their columns are the same for those of x's dtype and of f32, and have rules for each.
TEST(NormTuning, KeptColumnsOfEitherDtypeHaveRulesOfTheirOwn) {
  const std::string kept = "bf16 plain layer kept store vector 128x4",
                    f32 = "bf16 plain layer f32 store vector 256x2",
                    once = "bf16 plain layer once store vector 256x2";
  const auto kernels = [&](const std::string& rules) {  // with columns of x's dtype, and with f32
    const NormTuning tuning = tuning_of(rules);
    std::vector<std::string> names;
    for (const fastnorm_dtype_id columns : {FASTNORM_DTYPE_BF16, FASTNORM_DTYPE_F32}) {
      Request r = simple_request({2000, 4096}, FASTNORM_DTYPE_BF16, false, FASTNORM_NORM_LAYER);
      r.weight->dtype = r.bias->dtype = columns;
      names.push_back(kernel_for(r, &tuning));
    }
    return names;
  };
  using Names = std::vector<std::string>;
  const Names chosen = kernels("");
  const std::string rows = " 1- 4096 ";
  EXPECT_EQ(kernels("norm" + rows + f32 + "\nnorm" + rows + once + "\n"), (Names{once, f32}));
  EXPECT_EQ(kernels("norm" + rows + kept + "\nnorm" + rows + f32 + "\n"), (Names{kept, f32}));
  EXPECT_EQ(kernels("norm-f32" + rows + kept + "\nnorm" + rows + once + "\n"), (Names{once, kept}));
  EXPECT_EQ(kernels("norm-f32" + rows + kept + "\nnorm" + rows + kept + "\n"), (Names{kept, kept}));
  EXPECT_EQ(kernels("norm-f32" + rows + kept + "\n"), (Names{chosen[0], kept}));
  EXPECT_EQ(kernels("norm" + rows + kept + "\n"), (Names{kept, chosen[1]}));
  expect_refused(kHead + "norm-f32 1 4096 " + f32 + "\n",
                 "line 4 names kernel \"" + f32 + "\" after norm-f32; required: one that keeps");
}

// Kernels that make scales from the values make them for rows and for blocks of columns, and have rules for each.
TEST(NormTuning, ScalesOfRowsAndOfBlocksHaveRulesOfTheirOwn) {
  const std::string key = "bf16 plain rms once quant vector ";
  const auto kernels = [&](const std::string& rules) {
    const NormTuning tuning = tuning_of(rules);
    std::vector<std::string> names;
    for (const fastnorm_quant_scheme scheme : {FASTNORM_QUANT_PER_ROW, FASTNORM_QUANT_PER_BLOCK,
                                               FASTNORM_QUANT_MXFP8, FASTNORM_QUANT_NVFP4}) {
      Request r = simple_request({2000, 4096}, FASTNORM_DTYPE_BF16);
      add_quant(&r, scheme);
      r.y.reset();
      r.amax.reset();
      names.push_back(kernel_for(r, &tuning));
    }
    return names;
  };
  using Names = std::vector<std::string>;
  const std::string chosen = key + "bare 128x4", general = key + "128x4",
                    other = key + "bare 256x2", rows = " 1- 4096 ";
  EXPECT_EQ(kernels(""), (Names{chosen, chosen, chosen, chosen}));
  EXPECT_EQ(kernels("norm" + rows + other + "\n"), (Names{other, chosen, chosen, chosen}));
  EXPECT_EQ(kernels("norm-blocks" + rows + other + "\n"), (Names{chosen, other, other, other}));
  EXPECT_EQ(kernels("norm" + rows + other + "\nnorm-blocks" + rows + general + "\n"),
            (Names{other, general, general, general}));
  const std::string plain = "bf16 plain rms once store vector 256x2";
  expect_refused(kHead + "norm-blocks 1 4096 " + plain + "\n",
                 "line 4 names kernel \"" + plain +
                     "\" after norm-blocks; required: one that makes scales from the values "
                     "(\"quant\"), or norm");
}

TEST(NormTuning, PlansTheGridOfItsKernel) {
  const NormTuning tuning = tuning_of("norm 64 8192 bf16 plain rms once store vector 128x2x4\n");
  NormDesc desc;
  NormPlan plan, chosen;
  Error error;
  ASSERT_EQ(simple_request({64, 8192}, FASTNORM_DTYPE_BF16).check(&desc, error), FASTNORM_OK);
  ASSERT_EQ(make_plan(desc, gpu(), table(), &plan, error, &tuning), FASTNORM_OK) << error.text;
  ASSERT_EQ(make_plan_for_entry(desc, gpu(), table(), plan.index, &chosen, error), FASTNORM_OK);
  EXPECT_STREQ(plan.entry->name, "bf16 plain rms once store vector 128x2x4");
  EXPECT_EQ(plan.blocks, 256u);
  EXPECT_EQ(plan.blocks, chosen.blocks);
  EXPECT_EQ(plan.stream_loads, chosen.stream_loads);
  EXPECT_EQ(plan.bytes_read, chosen.bytes_read);
}

TEST(NormTuning, LeavesHeadsToTheLadder) {
  const std::string tuned = "bf16 plain rms once store vector 16x1";
  const NormTuning tuning = tuning_of("norm 1-100000 128 " + tuned + "\n");
  Request r = simple_request({64, 8, 128}, FASTNORM_DTYPE_BF16);
  r.x->strides = r.y->strides = {10 * 128, 128, 1};
  NormDesc desc;
  NormPlan plan, ladder;
  Error error;
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  ASSERT_EQ(desc.outer_rank, 2);
  ASSERT_EQ(make_plan(desc, gpu(), table(), &plan, error, &tuning), FASTNORM_OK);
  ASSERT_EQ(make_plan(desc, gpu(), table(), &ladder, error), FASTNORM_OK);
  EXPECT_EQ(plan.index, ladder.index);
}

TEST(NormTuning, ClustersThatADeviceCannotScheduleDoNotCount) {
  const std::string rules =
      "norm 1 8192 bf16 plain rms once store vector 64x2x8\n"
      "norm 2 8192 bf16 plain rms once store vector 256x4\n";
  EXPECT_EQ(tuning_of(rules).size(), 2u);
  EXPECT_EQ(tuning_of(rules, gpu(1)).size(), 1u);
}

// Each kernel of an architecture can be named, for the longest and the shortest row that it holds.
TEST(NormTuning, AcceptsEveryKernel) {
  for (const ArchSpec* arch : cuda::kArchs) {
    const DeviceFacts facts = cuda::make_facts(*arch, 0, 132, 16);
    std::string text = "fastnorm tuning 1\nlibrary 1.2.3\narch " + std::string(arch->name) + "\n";
    size_t rules = 0;
    int64_t row = 0;
    for (const NormEntry& entry : cuda::norm_table(*arch)) {
      const VectorRange range = vectors_held(entry);
      const int64_t per_vector = 16 / dtype_bytes(entry.key.dtype);
      for (const int64_t vectors : {range.least, std::min<int64_t>(range.most, 1 << 20)}) {
        text += "norm " + std::to_string(++row) + " " + std::to_string(vectors * per_vector) + " " +
                entry.name + "\n";
        ++rules;
      }
    }
    NormTuning tuning;
    Error error;
    ASSERT_EQ(NormTuning::read(text, "1.2.3", cuda::norm_table(*arch), facts, &tuning, error),
              FASTNORM_OK)
        << arch->name << ": " << error.text;
    EXPECT_EQ(tuning.size(), rules);
  }
}

}  // namespace
}  // namespace fastnorm::test
