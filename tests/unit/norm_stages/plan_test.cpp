// Which kernel a norm call with stages runs on, and the lists of kernels.
#include "core/norm/plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "core/norm/check.h"
#include "core/norm/stages.h"
#include "cuda/arch.h"
#include "cuda/families.h"
#include "cuda/gpu_device.h"

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
      ASSERT_EQ(make_plan(d, facts, cuda::table_of<cuda::NormFamily>(*arch), &plan, error),
                FASTNORM_OK)
          << error.text;
      EXPECT_STREQ(plan.entry->name, call.kernel) << arch->name;
      EXPECT_EQ(plan.blocks, call.blocks) << arch->name;
      EXPECT_EQ(plan.bytes_read,
                static_cast<uint64_t>(call.rows * call.n * dtype_bytes(call.dtype)));
      EXPECT_EQ(plan.entry, &arch->stages->entries[plan.index]);
      EXPECT_EQ(std::strncmp(cuda::variant_text({&d, &plan}), "V(kGeneral, ALL", 15), 0);
    }
  }
}

const char* kernel_of(const NormDesc& d, const ArchSpec& arch) {
  NormPlan plan;
  Error error;
  EXPECT_EQ(make_plan(d, cuda::make_facts(arch, 0, 132, 8), {}, &plan, error), FASTNORM_OK)
      << error.text;
  return plan.entry != nullptr ? plan.entry->name : "";
}

NormDesc gated(int64_t rows, int64_t groups, int64_t group) {
  NormDesc d = described(Dtype::kBF16, rows, groups * group);
  d.stages.activation = FASTNORM_ACTIVATION_IDENTITY;
  d.stages.gate = d.x;
  d.stages.gate_act = FASTNORM_ACTIVATION_SILU;
  d.stages.group = group;
  d.stages.groups = groups;
  return d;
}

NormDesc sandwich(int64_t rows, int64_t n) {
  NormDesc d = described(Dtype::kF16, rows, n);
  d.stages.activation = FASTNORM_ACTIVATION_IDENTITY;
  d.stages.branch = true;
  d.residual = d.residual_out = d.x;
  d.sum_dtype = Dtype::kF16;
  return d;
}

// [batch, tokens, n] with modulators of [batch, 1, n].
NormDesc modulated(int64_t tokens, int64_t n) {
  NormDesc d = described(Dtype::kBF16, 2 * tokens, n);
  d.stages.activation = FASTNORM_ACTIVATION_IDENTITY;
  d.kind = FASTNORM_NORM_LAYER;
  d.outer_rank = 2;
  d.outer[0] = tokens, d.outer[1] = 2;
  d.x.stride_bytes[1] = tokens * n * 2;
  d.y = d.residual = d.residual_out = d.x;
  d.sum_dtype = Dtype::kBF16;
  for (Modulator* m :
       {&d.stages.residual_gate, &d.stages.modulation_scale, &d.stages.modulation_shift}) {
    m->rows = d.x;
    m->rows.stride_bytes[0] = 0;
    m->rows.stride_bytes[1] = n * 2;
  }
  return d;
}

TEST(StagesPlan, HeldKernels) {
  EXPECT_STREQ(kernel_of(gated(4096, 1, 64), cuda::kSm90), "bf16 gated 8x1");
  EXPECT_STREQ(kernel_of(gated(1, 32, 128), cuda::kSm90), "bf16 gated 16x1");
  EXPECT_STREQ(kernel_of(gated(4096, 8, 1024), cuda::kSm90), "bf16 gated 32x4");
  EXPECT_STREQ(kernel_of(gated(1, 8, 1024), cuda::kSm90), "bf16 gated 128x1");
  EXPECT_STREQ(kernel_of(gated(4096, 1, 8192), cuda::kSm90), "bf16 gated 256x4");
  EXPECT_STREQ(kernel_of(gated(4096, 1, 8200), cuda::kSm90), "bf16 stages 256xstream");
  EXPECT_STREQ(kernel_of(sandwich(4096, 2304), cuda::kSm90), "f16 sandwich 256x2");
  EXPECT_STREQ(kernel_of(sandwich(4096, 5376), cuda::kSm90), "f16 sandwich 256x3");
  EXPECT_STREQ(kernel_of(sandwich(132, 8192), cuda::kSm90), "f16 sandwich 1024x1");
  EXPECT_STREQ(kernel_of(sandwich(133, 8192), cuda::kSm90), "f16 sandwich 256x4");
  EXPECT_STREQ(kernel_of(sandwich(1, 16392), cuda::kSm90), "f16 stages 256xstream");
  EXPECT_STREQ(kernel_of(gated(4096, 1, 64), cuda::kSm80), "bf16 stages 32xstream");
  EXPECT_STREQ(kernel_of(sandwich(4096, 4096), cuda::kPtx), "f16 stages 256xstream");
  EXPECT_STREQ(kernel_of(modulated(4096, 512), cuda::kSm90), "bf16 modulated 32x2");
  EXPECT_STREQ(kernel_of(modulated(4096, 3072), cuda::kSm90), "bf16 modulated 128x3");
  EXPECT_STREQ(kernel_of(modulated(1, 3072), cuda::kSm90), "bf16 modulated 512x1");
  EXPECT_STREQ(kernel_of(modulated(4096, 8192), cuda::kSm90), "bf16 modulated 256x4");
  EXPECT_STREQ(kernel_of(modulated(1, 8200), cuda::kSm90), "bf16 stages 256xstream");
  EXPECT_STREQ(kernel_of(modulated(4096, 3072), cuda::kSm100), "bf16 stages 256xstream");
}

NormDesc rotated(int64_t rows, int64_t n) {
  NormDesc d = described(Dtype::kBF16, rows, n);
  d.stages.activation = FASTNORM_ACTIVATION_IDENTITY;
  d.y = RowTensor{};
  d.weight.data = d.x.data;
  d.weight.dtype = d.dtype;
  d.quant.scheme = FASTNORM_QUANT_PER_ROW;
  d.quant.dtype = Dtype::kF8E4M3;
  d.quant.codes.data = d.x.data;
  d.quant.codes.stride_bytes[0] = n;
  d.quant.rotation = 64;
  return d;
}

TEST(StagesPlan, RotatedKernels) {
  EXPECT_STREQ(kernel_of(rotated(4096, 1024), cuda::kSm90), "bf16 rotated-lean 32x4");
  EXPECT_STREQ(kernel_of(rotated(4096, 2048), cuda::kSm90), "bf16 rotated-lean 128x2");
  EXPECT_STREQ(kernel_of(rotated(4096, 4096), cuda::kSm90), "bf16 rotated-lean 128x4");
  EXPECT_STREQ(kernel_of(rotated(4096, 8192), cuda::kSm90), "bf16 rotated-lean 256x4");
  EXPECT_STREQ(kernel_of(rotated(4096, 16384), cuda::kSm90), "bf16 rotated 512x4");
  EXPECT_STREQ(kernel_of(rotated(4096, 16448), cuda::kSm90), "bf16 stages 256xstream");
  EXPECT_STREQ(kernel_of(rotated(4096, 4096), cuda::kSm100), "bf16 stages 256xstream");
  const auto kernel = [](auto change) {
    NormDesc d = rotated(4096, 4096);
    change(d);
    return std::string(kernel_of(d, cuda::kSm90));
  };
  const char* const full = "bf16 rotated 128x4";
  EXPECT_EQ(kernel([](NormDesc& d) { d.y = d.x; }), full);
  EXPECT_EQ(kernel([](NormDesc& d) { d.weight = WeightTensor{}; }), full);
  EXPECT_EQ(kernel([](NormDesc& d) { d.quant.clamp = 1; }), full);
  EXPECT_EQ(kernel([](NormDesc& d) { d.quant.from_rounded = true; }), full);
  EXPECT_EQ(kernel([](NormDesc& d) { d.rounding = FASTNORM_ROUND_NORMALIZED; }), full);
  const char* const general = "bf16 stages 256xstream";
  EXPECT_EQ(kernel([](NormDesc& d) { d.kind = FASTNORM_NORM_LAYER; }), general);
  EXPECT_EQ(kernel([](NormDesc& d) { d.bias = d.weight; }), general);
  EXPECT_EQ(kernel([](NormDesc& d) { d.rounding = FASTNORM_ROUND_EVERY_STEP; }), general);
  EXPECT_EQ(kernel([](NormDesc& d) { d.stages.gate = d.x; }), general);
  EXPECT_EQ(kernel([](NormDesc& d) { d.stages.rstd_in = d.x; }), general);
  EXPECT_EQ(kernel([](NormDesc& d) { d.quant.codes.data += 4; }), general);
  EXPECT_EQ(kernel([](NormDesc& d) { d.quant.signs.data = d.x.data + 8; }), general);
  EXPECT_EQ(kernel([](NormDesc& d) { d.weight.dtype = Dtype::kF32; }), general);
}

// What held kernels do not do goes to the general one.
TEST(StagesPlan, OtherCallsAreGeneral) {
  const auto is_general = [](const NormDesc& d) {
    return std::strstr(kernel_of(d, cuda::kSm90), " stages ") != nullptr;
  };
  ASSERT_FALSE(is_general(gated(8, 4, 128)));
  ASSERT_FALSE(is_general(sandwich(8, 4096)));
  void (*const of_both[])(NormDesc&) = {
      [](NormDesc& d) { d.kind = FASTNORM_NORM_LAYER; },
      [](NormDesc& d) { d.rounding = FASTNORM_ROUND_EVERY_STEP; },
      [](NormDesc& d) { d.rounding = FASTNORM_ROUND_ONCE_RW; },
      [](NormDesc& d) {
        d.y = {};
        d.stages.sumsq.data = d.x.data;
      },
      [](NormDesc& d) { d.y.dtype = Dtype::kF32; },
      [](NormDesc& d) { d.quant.scheme = FASTNORM_QUANT_PER_ROW; },
      [](NormDesc& d) { d.quant.amax = d.x.data; },
      [](NormDesc& d) { d.bias.data = d.x.data; },
      [](NormDesc& d) {
        d.weight = {d.x.data, 0, {}, Dtype::kF32};
      },
      [](NormDesc& d) {
        d.weight = {d.x.data, 256, {}, d.dtype};
      },
      [](NormDesc& d) { d.stages.activation = FASTNORM_ACTIVATION_SILU; },
      [](NormDesc& d) { d.stages.rstd_in.data = d.x.data; },
      [](NormDesc& d) { d.x.data += 8; },
      [](NormDesc& d) { d.x.stride_bytes[0] += 8; },
  };
  for (const auto& change : of_both) {
    NormDesc g = gated(8, 4, 128), s = sandwich(8, 4096);
    change(g), change(s);
    EXPECT_TRUE(is_general(g)) << &change - of_both;
    EXPECT_TRUE(is_general(s)) << &change - of_both;
  }
  NormDesc g = gated(8, 4, 128);
  g.stages.gate_before = true;
  EXPECT_FALSE(is_general(g));
  g.rounding = FASTNORM_ROUND_NORMALIZED;
  EXPECT_TRUE(is_general(g));
  g = gated(8, 4, 128);
  g.residual = g.x;
  EXPECT_TRUE(is_general(g));
  g = gated(8, 3, 132);
  EXPECT_TRUE(is_general(g)) << "groups that are not whole vectors";
  NormDesc s = sandwich(8, 4096);
  s.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY;
  EXPECT_TRUE(is_general(s));
  s = sandwich(8, 4096);
  s.stages.branch_kind = FASTNORM_NORM_LAYER;
  EXPECT_TRUE(is_general(s));
  s = sandwich(8, 4096);
  s.stages.branch_bias.data = s.x.data;
  EXPECT_TRUE(is_general(s));
  s = sandwich(8, 4096);
  s.residual = s.residual_out = {};
  EXPECT_TRUE(is_general(s));
}

TEST(StagesPlan, ModulatedCalls) {
  const auto is_general = [](void (*change)(NormDesc&)) {
    NormDesc d = modulated(8, 3072);
    change(d);
    return std::strstr(kernel_of(d, cuda::kSm90), " stages ") != nullptr;
  };
  void (*const held[])(NormDesc&) = {
      [](NormDesc&) {},
      [](NormDesc& d) { d.kind = FASTNORM_NORM_RMS; },
      [](NormDesc& d) { d.rounding = FASTNORM_ROUND_NORMALIZED; },
      [](NormDesc& d) { d.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS; },
      [](NormDesc& d) { d.residual = d.residual_out = {}; },
      [](NormDesc& d) { d.stages.residual_gate = {}; },
      [](NormDesc& d) { d.stages.modulation_scale = {}; },
      [](NormDesc& d) { d.stages.modulation_shift = {}; },
      [](NormDesc& d) { d.stages.modulation_every_step = true; },
      [](NormDesc& d) { d.stages.sum_every_step = true; },
      [](NormDesc& d) { d.stages.plain_scale = true; },
      [](NormDesc& d) { d.stages.scaled = true; },
      [](NormDesc& d) {
        d.weight = {d.x.data, 0, {}, d.dtype};
      },
      [](NormDesc& d) {
        d.stages.modulation_index = d.x;
        d.stages.modulation_scale.index_rows = 4;
        d.stages.modulation_scale.index_stride = 6144;
      },
      [](NormDesc& d) { d.stages.modulation_scale.rows.dtype = Dtype::kF32; },
      [](NormDesc& d) {
        d.stages.modulation_shift.table = {d.x.data, 0, {}, d.dtype};
      },
      [](NormDesc& d) {
        d.stages.residual_gate.rows.dtype = Dtype::kF32;
        d.stages.residual_gate.table = {d.x.data, 0, {}, Dtype::kF32};
        d.stages.plain_scale = d.stages.scaled = true;
        d.rounding = FASTNORM_ROUND_NORMALIZED;
        d.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS;
      },
  };
  for (const auto& change : held) EXPECT_FALSE(is_general(change)) << &change - held;
  void (*const general[])(NormDesc&) = {
      [](NormDesc& d) { d.rounding = FASTNORM_ROUND_EVERY_STEP; },
      [](NormDesc& d) { d.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY; },
      [](NormDesc& d) {
        d.weight = {d.x.data, 0, {}, Dtype::kF32};
      },
      [](NormDesc& d) { d.bias.data = d.x.data; },
      [](NormDesc& d) { d.quant.scheme = FASTNORM_QUANT_PER_ROW; },
      [](NormDesc& d) { d.stages.gate = d.x; },
      [](NormDesc& d) { d.stages.branch = true; },
      [](NormDesc& d) { d.stages.sum_scale = d.x.data; },
      [](NormDesc& d) { d.stages.residual_gate_act = FASTNORM_ACTIVATION_TANH; },
      [](NormDesc& d) { d.stages.modulation_scale.single = true; },
      [](NormDesc& d) { d.stages.modulation_scale.rows.dtype = Dtype::kF16; },
      [](NormDesc& d) { d.stages.modulation_scale.rows.data += 8; },
      [](NormDesc& d) { d.stages.modulation_shift.rows.stride_bytes[1] += 8; },
      [](NormDesc& d) { d.stages.modulation_shift.index_stride = 8; },
      [](NormDesc& d) {
        d.stages.modulation_shift.table = {d.x.data + 8, 0, {}, d.dtype};
      },
      [](NormDesc& d) {
        d.stages.modulation_shift.table = {d.x.data, 0, {}, Dtype::kF16};
      },
      [](NormDesc& d) {
        d.stages.modulation_scale.rows.dtype = Dtype::kF32;
        d.stages.modulation_every_step = true;
      },
      [](NormDesc& d) {
        d.stages.modulation_shift.table = {d.x.data, 0, {}, Dtype::kF32};
        d.stages.sum_every_step = true;
      },
  };
  for (const auto& change : general) EXPECT_TRUE(is_general(change)) << &change - general;
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
    EXPECT_TRUE(!serves || v.dtype == Dtype::kF16) << facts.arch->stages->entries[i].name;
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
    for (const StagesEntry& entry : cuda::table_of<cuda::NormStagesFamily>(*arch)) {
      const uint32_t word = packed(entry.variant);
      EXPECT_TRUE(names.empty() || before < word) << entry.name;
      EXPECT_EQ(stages_variant_of(word), entry.variant) << entry.name;
      EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
      before = word;
    }
    EXPECT_EQ(names.size(), cuda::table_of<cuda::NormStagesFamily>(*arch).size());
  }
}

}  // namespace
}  // namespace fastnorm::test
