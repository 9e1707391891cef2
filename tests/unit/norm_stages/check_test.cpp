// Descriptions of norm's stages. calls/norm.txt has the calls that are refused.
#include "core/norm/check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "core/norm/check_stages.h"
#include "core/norm/plan.h"
#include "core/norm/stages.h"
#include "unit/call_table.h"

namespace fastnorm::test {

using support::Call;

namespace {

constexpr int64_t kRows = 3, kN = 32, kGroup = 8, kGroups = kN / kGroup;

// The call `stages` of calls/norm.txt has a gate, groups, statistics, sums, a branch and
// modulators; `indexed` has modulators of five rows besides, of which an index takes some.
NormDesc described(Call call) {
  NormDesc d;
  Error error;
  EXPECT_EQ(check_norm(call.args<fastnorm_norm_args>(), {FASTNORM_DEVICE_CPU, 0}, &d, error),
            FASTNORM_OK)
      << call.text() << ": " << error.text;
  return d;
}

NormDesc described(const char* base, const std::string& changes = "") {
  return described(call_of("norm", base, changes));
}

TEST(CheckStages, DescriptionOfAFullCall) {
  const NormDesc d = described("stages");
  ASSERT_TRUE(d.has_stages);
  const StagesDesc& s = d.stages;
  EXPECT_EQ(s.group, kGroup);
  EXPECT_EQ(s.groups, kGroups);
  EXPECT_EQ(d.n, kN);
  EXPECT_EQ(d.inv_n, 1.0f / kGroup);
  EXPECT_EQ(s.gate_act, FASTNORM_ACTIVATION_SILU);
  EXPECT_EQ(s.activation, FASTNORM_ACTIVATION_SIGMOID);
  EXPECT_FALSE(s.gate_before);
  EXPECT_EQ(s.gate.stride_bytes[0], kN * 2);
  EXPECT_EQ(s.sumsq.stride_bytes[0], kGroups * 2 * 4);
  EXPECT_EQ(d.rstd.stride_bytes[0], kGroups * 4);
  EXPECT_FALSE(s.weight_shared);
  EXPECT_TRUE(s.branch && s.branch_rounded && s.scaled);
  EXPECT_EQ(s.branch_bias.head_stride_bytes, kN * 4);
  EXPECT_EQ(s.branch_rstd.stride_bytes[0], 4);
}

TEST(CheckStages, DescriptionOfModulators) {
  NormDesc d = described("stages");
  const StagesDesc& s = d.stages;
  EXPECT_TRUE(s.residual_gate.single);
  EXPECT_EQ(s.residual_gate.rows.stride_bytes[0], 2);
  EXPECT_EQ(s.residual_gate_act, FASTNORM_ACTIVATION_TANH);
  EXPECT_FALSE(s.modulation_scale.single);
  EXPECT_EQ(s.modulation_scale.rows.stride_bytes[0], kN * 2);
  EXPECT_EQ(s.modulation_shift.rows.stride_bytes[0], 0);
  EXPECT_EQ(s.modulation_shift.table.dtype, Dtype::kBF16);
  EXPECT_TRUE(s.modulation_every_step);
  EXPECT_FALSE(s.plain_scale);
  d = described("indexed", "flags=0x18");
  EXPECT_TRUE(s.plain_scale);
  EXPECT_EQ(d.flags, 0u);  // the others are PDL's
  EXPECT_EQ(s.modulation_scale.index_rows, 5);
  EXPECT_EQ(s.modulation_scale.index_stride, kN * 2);
  EXPECT_EQ(s.residual_gate.index_stride, 2);
  EXPECT_EQ(s.modulation_index.stride_bytes[0], 8);
}

// [batch, frames, 1, n] beside rows of [batch, frames, tokens].
TEST(CheckStages, ModulatorsOfSomeDimensions) {
  const NormDesc d = described(
      Call("norm eps=1e-6 x,y=f32[2,3,5,32] weight=f32[32] modulation_scale=f32[2,3,1,32] "
           "modulation_scale.strides=[576,192,7,1] modulation_shift=f32[2,1,1,32]"));
  EXPECT_EQ(d.outer_rank, 3);
  const int64_t scale[] = {0, 6 * kN * 4, 18 * kN * 4}, shift[] = {0, 0, kN * 4};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(d.stages.modulation_scale.rows.stride_bytes[i], scale[i]);
    EXPECT_EQ(d.stages.modulation_shift.rows.stride_bytes[i], shift[i]);
  }
}

// x and its companions as [3, 1, 2, 1, 5, n]: the description is that of [30, n].
TEST(CheckStages, SixDimensions) {
  const auto with = [](const std::string& leading) {
    return call_of("norm", "stages",
                   "x,y,residual,residual_out,gate,modulation_scale,branch_bias.shape=[" + leading +
                       ",32] mean,rstd.shape=[" + leading + ",4] sumsq.shape=[" + leading +
                       ",4,2] branch_rstd,residual_gate.shape=[" + leading +
                       ",1] weight.shape=[8]");
  };
  Call wide = with("3,1,2,1,5");
  const NormDesc of_flat = described(with("30"));
  NormDesc of_wide = described(wide);
  EXPECT_EQ(of_wide.rows, 30);
  EXPECT_EQ(of_wide.outer_rank, 1);
  const StagesDesc &a = of_flat.stages, &b = of_wide.stages;
  const RowTensor* const rows[][2] = {{&a.gate, &b.gate},
                                      {&a.sumsq, &b.sumsq},
                                      {&a.branch_rstd, &b.branch_rstd},
                                      {&a.residual_gate.rows, &b.residual_gate.rows},
                                      {&a.modulation_scale.rows, &b.modulation_scale.rows},
                                      {&a.modulation_shift.rows, &b.modulation_shift.rows},
                                      {&of_flat.mean, &of_wide.mean}};
  for (const auto& pair : rows) {
    EXPECT_EQ(pair[0]->data, pair[1]->data);
    for (int d = 0; d < kMaxOuter; ++d)
      EXPECT_EQ(pair[0]->stride_bytes[d], pair[1]->stride_bytes[d]);
  }
  EXPECT_EQ(a.branch_bias.head_stride_bytes, b.branch_bias.head_stride_bytes);
  EXPECT_TRUE(b.residual_gate.single && b.weight_shared);
  // A modulator of some dimensions keeps them apart.
  wide.change("modulation_scale.shape=[3,1,1,1,1,32]");
  of_wide = described(wide);
  EXPECT_EQ(of_wide.outer_rank, 2);
  EXPECT_EQ(of_wide.stages.modulation_scale.rows.stride_bytes[0], 0);
  EXPECT_EQ(of_wide.stages.modulation_scale.rows.stride_bytes[1], kN * 2);
  wide.change(
      "modulation_index=i64[3,1,2,1,5] residual_gate.shape=[5,1] "
      "modulation_scale,modulation_shift.shape=[5,32]");
  EXPECT_EQ(described(wide).stages.modulation_index.stride_bytes[0], 8);
}

// Sets what a tensor reads.
void point_to(Call* call, const char* tensor, const void* memory) {
  call->tensor(tensor)->address =
      support::CallTensor::Address{"", reinterpret_cast<uintptr_t>(memory)};
}

TEST(CheckStages, IndicesOutOfRange) {
  Call call = call_of("norm", "indexed");
  int64_t index[kRows] = {4, 0, 2};
  point_to(&call, "modulation_index", index);
  NormDesc d = described(call);
  Error error;
  EXPECT_EQ(check_modulation_index(d, error), FASTNORM_OK) << error.text;
  for (const int64_t wrong : {int64_t{5}, int64_t{-1}, INT64_MIN}) {
    index[1] = wrong;
    EXPECT_EQ(check_modulation_index(d, error), FASTNORM_ERROR_ARGUMENT);
    const std::string text = "modulation_index of row 1 is " + std::to_string(wrong);
    EXPECT_NE(std::strstr(error.text, text.c_str()), nullptr) << error.text;
    EXPECT_NE(std::strstr(error.text, "required: 0 to 4"), nullptr) << error.text;
  }
  const int32_t narrow[kRows] = {4, 0, 5};
  call.change("modulation_index.dtype=i32");
  point_to(&call, "modulation_index", narrow);
  d = described(call);
  EXPECT_EQ(check_modulation_index(d, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::strstr(error.text, "row 2 is 5"), nullptr) << error.text;
}

TEST(CheckStages, ColumnsOfAGroup) {
  const NormDesc d = described("stages", "weight.shape=[8] bias.shape=[3,8]");
  EXPECT_TRUE(d.stages.weight_shared);
  EXPECT_TRUE(d.stages.bias_shared);
  EXPECT_EQ(d.bias.head_stride_bytes, kGroup * 2);
  EXPECT_EQ(d.weight_columns(), kGroup);
}

TEST(CheckStages, OneGroup) {
  const NormDesc d = described("stages", "group_size=0 mean,rstd.shape=[3,1] sumsq.shape=[3,2]");
  EXPECT_EQ(d.stages.groups, 1);
  EXPECT_EQ(d.stages.group, kN);
}

TEST(CheckStages, AlphaIsAFactorUnlessItIsOne) {
  EXPECT_FALSE(described("stages", "alpha=1").stages.scaled);
  const StagesDesc zero = described("stages", "alpha=0").stages;
  EXPECT_TRUE(zero.scaled);
  EXPECT_EQ(zero.alpha, 0);
  const StagesDesc none = described("stages", "alpha=0 flags=0").stages;
  EXPECT_FALSE(none.scaled);
  EXPECT_EQ(none.alpha, 1);
}

TEST(CheckStages, NoneIsToldByNoField) {
  const char* const plain = "norm eps=1e-6 x,y=f16[3,32] weight=f16[32]";
  EXPECT_FALSE(described(Call(plain)).has_stages);
  EXPECT_TRUE(described(Call(std::string(plain) + " group_size=32")).has_stages);
}

TEST(CheckStages, NoRows) {
  const NormDesc d = described(
      "stages",
      "x,y,residual,residual_out,gate.shape=[0,32] mean,rstd.shape=[0,4] sumsq.shape=[0,4,2] "
      "branch_rstd.shape=[0] branch_bias,modulation_scale.shape=[1,32] residual_gate.shape=[0,1] "
      "gate.address=null");
  EXPECT_EQ(d.rows, 0);
}

TEST(CheckStages, PlansOfTheCpu) {
  const NormDesc d = described("stages");
  Error error;
  DeviceFacts facts;
  NormPlan plan;
  ASSERT_EQ(make_plan(d, facts, {}, &plan, error), FASTNORM_OK) << error.text;
  EXPECT_STREQ(plan.entry->name, "bf16 layer stages");
  EXPECT_EQ(plan.index, stages_kernel(Dtype::kBF16, Stat::kLayer));
  // x, residual, gate; weight, bias and the branch's weight; a bias for each row. Modulators: a
  // value and n columns for each row, n for all; tables. y, residual_out; mean and rstd, and pairs,
  // of groups; the branch's rstd.
  constexpr uint64_t kModulators = kRows * 2 + kRows * kN * 2 + kN * 4 + kN * (4 + 4 + 2);
  EXPECT_EQ(plan.bytes_read,
            uint64_t{3 * kRows * kN * 2 + 3 * kN * 2 + kRows * kN * 4} + kModulators);
  EXPECT_EQ(plan.bytes_written, uint64_t{2 * kRows * kN * 2 + kRows * kGroups * 4 * 4 + kRows * 4});
}

}  // namespace
}  // namespace fastnorm::test
