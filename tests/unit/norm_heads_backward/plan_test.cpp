// The CUDA kernels of norm_heads_backward and how planning chooses one, for every architecture.
#include "core/norm_heads_backward/plan.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "core/norm_backward/check.h"
#include "core/norm_backward/rows.h"
#include "cuda/arch.h"
#include "cuda/families.h"
#include "unit/norm_heads_backward/request.h"

namespace fastnorm::test {
namespace {

DeviceFacts facts_of(const ArchSpec& arch) {
  DeviceFacts facts;
  facts.device_type = FASTNORM_DEVICE_CUDA;
  facts.arch = &arch;
  facts.multiprocessors = 132;
  return facts;
}

// A call, split into what kernels get.
struct Split {
  explicit Split(BackwardHeadsRequest request) {
    Error error;
    for (BackwardHeadsPart& p : request.parts) {
      for (auto* t : {&p.dy, &p.x, &p.weight, &p.mean, &p.rstd, &p.dx, &p.dweight, &p.dbias}) {
        if (*t) (*t)->device_type = FASTNORM_DEVICE_CUDA;
      }
    }
    for (auto* t : {&request.cos, &request.sin, &request.positions}) {
      if (*t) (*t)->device_type = FASTNORM_DEVICE_CUDA;
    }
    request.device = {FASTNORM_DEVICE_CUDA, 0};
    EXPECT_EQ(request.check(&desc, error), FASTNORM_OK) << error.text;
    parts.reserve(static_cast<size_t>(kMostHeadsGradients));
    for (int32_t i = 0; i < desc.count; ++i) {
      const NormBackwardParts of_one = norm_backward_parts(desc.wholes[i]);
      for (int32_t k = 0; k < of_one.count; ++k) {
        parts.push_back(of_one.at[k]);
        gradients.first[gradients.count] = of_one.count == 2 && k == 0;
        gradients.at[gradients.count++] = &parts.back();
      }
    }
  }
  Split(const Split&) = delete;

  NormHeadsBackwardPlan plan(const ArchSpec& arch) const {
    NormHeadsBackwardPlan result;
    Error error;
    EXPECT_EQ(plan_norm_heads_gradients(gradients, facts_of(arch),
                                        cuda::table_of<cuda::NormHeadsBackwardFamily>(arch),
                                        &result, error),
              FASTNORM_OK)
        << error.text;
    return result;
  }

  NormHeadsBackwardDesc desc;
  std::vector<NormBackwardDesc> parts;
  HeadsGradients gradients;
};

// Without the key's dbias, which has other groups than its dweight.
BackwardHeadsRequest plain_request() {
  BackwardHeadsRequest r = backward_heads_request();
  for (int i = 0; i < 2; ++i) r.parts[static_cast<size_t>(i)].dbias.reset();
  return r;
}

TEST(NormHeadsBackwardPlan, KernelsAreFewEnough) {
  for (const ArchSpec* arch : cuda::kArchs) {
    const size_t count = cuda::table_of<cuda::NormHeadsBackwardFamily>(*arch).size();
    EXPECT_LE(count + cuda::table_of<cuda::NormHeadsFamily>(*arch).size(),
              arch == &cuda::kSm90 ? 120u : 60u)
        << arch->name;
    EXPECT_GT(count, 0u) << arch->name;
  }
}

TEST(NormHeadsBackwardPlan, NamesAreUniqueAndWordsHoldAllNumbers) {
  for (const ArchSpec* arch : cuda::kArchs) {
    std::set<std::string> names;
    for (const NormHeadsBackwardEntry& entry :
         cuda::table_of<cuda::NormHeadsBackwardFamily>(*arch)) {
      EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
      EXPECT_EQ(heads_backward_variant_of(entry.order), entry.variant) << entry.name;
    }
  }
}

// 7 tokens of 8, 2 and 2 heads of 128.
TEST(NormHeadsBackwardPlan, GeneralForm) {
  const Split split(plain_request());
  for (const ArchSpec* arch : {&cuda::kSm80, &cuda::kSm100, &cuda::kSm120, &cuda::kPtx}) {
    const NormHeadsBackwardPlan plan = split.plan(*arch);
    EXPECT_STREQ(plan.kernel, "norm_heads_backward bf16 general") << arch->name;
    ASSERT_EQ(plan.launches, 2) << arch->name;
    // 56 rows in a block of 64 lanes, and 2 groups of 7 rows. Each is in two thread blocks of 32
    // lanes. 14 rows by 8 warps.
    EXPECT_EQ(plan.steps[0].blocks, 2u + 2 * 2 + 2);
    EXPECT_EQ(plan.steps[0].shared_bytes, 32 * 128 * 4);
    EXPECT_EQ(plan.steps[1].blocks, 4u + 2 * 4) << "32 columns a block";
    EXPECT_EQ(plan.workspace_bytes, 2u * 512 + 2 * 2 * 512);
    EXPECT_FALSE(plan.steps[0].early);
    EXPECT_EQ(plan.steps[1].early, arch->capability >= 90);
  }
}

TEST(NormHeadsBackwardPlan, HeldForms) {
  const auto kernel = [](auto change) {
    BackwardHeadsRequest r = plain_request();
    change(r);
    return std::string(Split(r).plan(cuda::kSm90).kernel);
  };
  EXPECT_EQ(kernel([](BackwardHeadsRequest&) {}), "norm_heads_backward bf16 held rms 16x1x64");
  EXPECT_EQ(kernel([](BackwardHeadsRequest& r) {
              for (int i = 0; i < 2; ++i) {
                auto& p = r.parts[static_cast<size_t>(i)];
                p.args.flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
              }
            }),
            "norm_heads_backward bf16 held rms 16x1x64");
  // LAYER with its statistics, and dbias.
  EXPECT_EQ(kernel([](BackwardHeadsRequest& r) {
              r.parts[1].args.kind = FASTNORM_NORM_LAYER;
              r.parts[1].mean = r.parts[1].rstd;
              r.parts[1].mean->address += uintptr_t{1} << 46;
            }),
            "norm_heads_backward bf16 held any 16x1x32");
  EXPECT_EQ(kernel([](BackwardHeadsRequest& r) {
              r.parts[0].dbias = backward_heads_tensor({128}, FASTNORM_DTYPE_F32, 40);
            }),
            "norm_heads_backward bf16 held any 16x1x32");
  // Statistics of LAYER that are computed again, a dy of f32, a window that divides a vector, rows
  // that begin between vectors, f32.
  const char* const general = "norm_heads_backward bf16 general";
  EXPECT_EQ(kernel([](BackwardHeadsRequest& r) { r.parts[0].args.kind = FASTNORM_NORM_LAYER; }),
            general);
  EXPECT_EQ(kernel([](BackwardHeadsRequest& r) { r.parts[2].dy->dtype = FASTNORM_DTYPE_F32; }),
            general);
  EXPECT_EQ(kernel([](BackwardHeadsRequest& r) {
              r.args.rope_dim = 24;
              r.cos->shape[1] = r.sin->shape[1] = 12;
            }),
            general);
  EXPECT_EQ(kernel([](BackwardHeadsRequest& r) { r.parts[0].dy->byte_offset = 8; }), general);
}

// Each held kernel is chosen for the rows that it is made for.
TEST(NormHeadsBackwardPlan, EveryHeldKernelIsChosen) {
  for (const NormHeadsBackwardEntry& entry :
       cuda::table_of<cuda::NormHeadsBackwardFamily>(cuda::kSm90)) {
    const NormHeadsBackwardVariant& v = entry.variant;
    if (!v.is_held()) continue;
    const int64_t n = v.threads * v.vectors * 8;
    BackwardHeadsRequest r = plain_request();
    r.parts.resize(1);
    BackwardHeadsPart& p = r.parts[0];
    const fastnorm_dtype_id id = v.dtype == Dtype::kBF16 ? FASTNORM_DTYPE_BF16 : FASTNORM_DTYPE_F16;
    for (auto* t : {&p.dy, &p.x, &p.dx, &p.weight}) (*t)->dtype = id;
    for (auto* t : {&p.dy, &p.x, &p.dx}) (*t)->shape = {7, 8, n}, (*t)->strides.clear();
    p.weight->shape = p.dweight->shape = {n};
    r.args.rope_dim = 64;
    r.cos->shape[1] = r.sin->shape[1] = 32;
    if (v.any) p.dbias = backward_heads_tensor({n}, FASTNORM_DTYPE_F32, 40);
    const int64_t split = norm_backward_rows(7 * 8, n).split_of(v.rows);
    if (split == 0 || split > (v.any ? 2 : 1)) p.dweight.reset();
    EXPECT_STREQ(Split(r).plan(cuda::kSm90).kernel, entry.name);
  }
}

// Held kernels store the sums of parts with one block, which need no fold and no workspace.
TEST(NormHeadsBackwardPlan, OneBlockNeedsNoFold) {
  BackwardHeadsRequest r = plain_request();
  const NormHeadsBackwardPlan one = Split(r).plan(cuda::kSm90);
  ASSERT_EQ(one.launches, 1);
  EXPECT_TRUE(one.parts[0].stores_sums) << "56 rows in a block of 64 lanes";
  EXPECT_TRUE(one.parts[1].stores_sums) << "2 groups of 7 rows";
  EXPECT_EQ(one.workspace_bytes, 0u);
  EXPECT_FALSE(one.steps[0].triggers);
  EXPECT_EQ(Split(r).plan(cuda::kSm80).launches, 2) << "general";
  r.parts.resize(1);
  for (auto* t : {&r.parts[0].dy, &r.parts[0].x, &r.parts[0].dx}) {
    (*t)->shape[1] = 10;
    (*t)->strides.clear();
  }
  const NormHeadsBackwardPlan two = Split(r).plan(cuda::kSm90);
  ASSERT_EQ(two.launches, 2);
  EXPECT_FALSE(two.parts[0].stores_sums) << "70 rows in 2 blocks of 64 lanes";
  EXPECT_TRUE(two.steps[0].triggers);
  EXPECT_EQ(two.workspace_bytes, 2u * 512);
}

// What a token's heads share has a launch of its own, and so has a dbias with other groups.
TEST(NormHeadsBackwardPlan, FirstLaunch) {
  BackwardHeadsRequest r = backward_heads_request();
  r.parts[1].args.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
  r.parts[1].rstd->shape = {7};
  const Split split(r);
  const NormHeadsBackwardPlan plan = split.plan(cuda::kSm90);
  EXPECT_STREQ(plan.kernel, "norm_heads_backward bf16 held any 16x1x32");
  ASSERT_EQ(plan.launches, 3);
  ASSERT_EQ(plan.steps[0].count, 2);
  EXPECT_EQ(plan.steps[0].items[0].role, HeadsBackwardRole::kTokens);
  EXPECT_EQ(plan.steps[0].items[1].role, HeadsBackwardRole::kRows);
  EXPECT_EQ(plan.steps[0].items[1].first_block, 7u);
  EXPECT_EQ(plan.steps[1].count, 3);
  EXPECT_EQ(plan.steps[2].count, 4) << "two thread blocks have the lanes of a block";
}

// What a token's heads share runs on the least kernel that holds them, else on the general one.
TEST(NormHeadsBackwardPlan, FirstLaunchOfHeldTokens) {
  const auto kernel = [](int64_t heads, auto change) {
    BackwardHeadsRequest r = plain_request();
    r.parts.resize(1);
    BackwardHeadsPart& p = r.parts[0];
    for (auto* t : {&p.dy, &p.x, &p.dx}) (*t)->shape = {7, heads, 128}, (*t)->strides.clear();
    p.args.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
    p.weight->shape = p.dweight->shape = {heads, 128};
    change(r, p);
    const NormHeadsBackwardPlan plan = Split(r).plan(cuda::kSm90);
    const bool one = plan.entry->variant.is_held() && !plan.entry->variant.any;
    EXPECT_EQ(plan.launches, one ? 2 : 3) << "one thread block needs no fold";
    EXPECT_EQ(plan.steps[0].blocks, 7u);
    return std::string(cuda::table_of<cuda::NormHeadsBackwardFamily>(
                           cuda::kSm90)[static_cast<size_t>(plan.steps[0].index)]
                           .name);
  };
  const auto as_it_is = [](BackwardHeadsRequest&, BackwardHeadsPart&) {};
  const std::string name = "norm_heads_backward bf16 ", general = name + "general";
  EXPECT_EQ(kernel(8, as_it_is), name + "tokens 128x1");
  EXPECT_EQ(kernel(9, as_it_is), name + "tokens 128x2");
  EXPECT_EQ(kernel(32, as_it_is), name + "tokens 256x2");
  EXPECT_EQ(kernel(40, as_it_is), name + "tokens 256x3");
  EXPECT_EQ(kernel(64, as_it_is), name + "tokens 512x2");
  EXPECT_EQ(kernel(65, as_it_is), general);
  EXPECT_EQ(kernel(8, [](auto&, auto& p) { p.dy->dtype = FASTNORM_DTYPE_F32; }), general);
  EXPECT_EQ(kernel(8, [](auto&, auto& p) { p.x->byte_offset = 8; }), general);
  EXPECT_EQ(kernel(8, [](auto&, auto& p) { p.args.kind = FASTNORM_NORM_LAYER; }), general)
      << "statistics of LAYER that are computed again";
  EXPECT_EQ(kernel(8,
                   [](auto& r, auto&) {
                     r.args.rope_dim = 24;
                     r.cos->shape[1] = r.sin->shape[1] = 12;
                   }),
            general);
}

// Many tokens whose heads share a statistic need no launch of their own for it.
TEST(NormHeadsBackwardPlan, WholeTokens) {
  const auto plan = [](int64_t tokens, int64_t heads, auto change) {
    BackwardHeadsRequest r = plain_request();
    r.parts.resize(1);
    BackwardHeadsPart& p = r.parts[0];
    for (auto* t : {&p.dy, &p.x, &p.dx}) (*t)->shape = {tokens, heads, 128}, (*t)->strides.clear();
    p.args.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
    p.weight->shape = p.dweight->shape = {heads, 128};
    r.positions->shape = {tokens};
    change(r, p);
    const NormHeadsBackwardPlan result = Split(r).plan(cuda::kSm90);
    return std::to_string(result.launches) + " " + result.kernel;
  };
  const auto as_it_is = [](BackwardHeadsRequest&, BackwardHeadsPart&) {};
  const std::string name = "norm_heads_backward bf16 ", held = "3 " + name + "held ";
  EXPECT_EQ(plan(4096, 32, as_it_is), "2 " + name + "whole 512x1");
  EXPECT_EQ(plan(4096, 12, as_it_is), "2 " + name + "whole 512x1");
  EXPECT_EQ(plan(4096, 40, as_it_is), "2 " + name + "whole 640x1");
  EXPECT_EQ(plan(4096, 41, as_it_is), held + "rms 16x1x64");
  EXPECT_EQ(plan(1024, 32, as_it_is), held + "rms 16x1x64") << "16 blocks";
  EXPECT_EQ(plan(4096, 32,
                 [](auto&, auto& p) {
                   p.dbias = backward_heads_tensor({32, 128}, FASTNORM_DTYPE_F32, 40);
                 }),
            held + "any 16x1x32");
  EXPECT_EQ(plan(4096, 32, [](auto&, auto& p) { p.weight->shape = p.dweight->shape = {128}; }),
            held + "rms 16x1x64")
      << "sums of all heads";
  EXPECT_EQ(plan(4096, 32, [](auto&, auto& p) { p.dweight.reset(); }), "1 " + name + "whole 512x1");
}

TEST(NormHeadsBackwardPlan, RowNumbersHave31Bits) {
  Split split(plain_request());
  split.parts[1].rows = int64_t{1} << 31;
  NormHeadsBackwardPlan plan;
  Error error;
  EXPECT_EQ(plan_norm_heads_gradients(split.gradients, facts_of(cuda::kSm90),
                                      cuda::table_of<cuda::NormHeadsBackwardFamily>(cuda::kSm90),
                                      &plan, error),
            FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(error.text).find("dy has 2147483648 rows"), std::string::npos)
      << error.text;
}

}  // namespace
}  // namespace fastnorm::test
