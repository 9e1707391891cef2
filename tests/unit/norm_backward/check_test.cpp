// Descriptions of gradients of norm. calls/norm_backward.txt has the calls that are refused.
#include "core/norm_backward/check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "unit/call_table.h"
#include "unit/norm_backward/request.h"

namespace fastnorm::test {
namespace {

const CheckedFamily kFamily("norm_backward", check_norm_backward);

using R = BackwardRequest;

constexpr fastnorm_dtype_id kF32 = FASTNORM_DTYPE_F32, kF16 = FASTNORM_DTYPE_F16,
                            kBF16 = FASTNORM_DTYPE_BF16;

// The branch as it is, without a norm.
void without_norm(R& r) {
  r.branch_weight.reset(), r.branch_bias.reset(), r.branch_mean.reset(), r.branch_rstd.reset();
  r.dbranch_weight.reset(), r.dbranch_bias.reset();
  r.args.branch_norm = 0, r.args.branch_kind = FASTNORM_NORM_RMS, r.args.branch_eps = 0;
}

// 4 batches of 3 heads.
R good_request() { return backward_request({4, 3, 64}, kBF16); }

NormBackwardDesc described(const R& r) {
  NormBackwardDesc d;
  Error error;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  return d;
}

TEST(NormBackwardCheck, LeastCall) {
  R r;
  r.args.struct_size = sizeof r.args;
  r.dy = backward_tensor(0, {5}, kF32);
  r.x = backward_tensor(1, {5}, kF32);
  r.dx = backward_tensor(2, {5}, kF32);
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 1);
  EXPECT_EQ(parts.at[0].rows, 1);
  EXPECT_EQ(parts.at[0].groups, 1);
  EXPECT_FALSE(parts.at[0].has_sums());
}

TEST(NormBackwardCheck, GroupsAreRows) {
  R r = gated_backward_request({4, 3, 64}, kBF16);
  r.args.group_size = 16;
  r.mean = backward_tensor(3, {4, 3, 4}, kF32);
  r.rstd = backward_tensor(4, {4, 3, 4}, kF32);
  // weight, dweight and bias [64] have a row for each group, dbias [16] is shared.
  r.dbias = backward_tensor(9, {16}, kBF16);
  const NormBackwardDesc whole = described(r);
  EXPECT_EQ(whole.n, 16);
  EXPECT_EQ(whole.rows, 48);
  EXPECT_EQ(whole.inv_n, 1.0f / 16);
  const NormBackwardParts parts = norm_backward_parts(whole);
  ASSERT_EQ(parts.count, 2);
  EXPECT_EQ(parts.at[0].groups, 1);
  EXPECT_TRUE(parts.at[0].gate.present);
  EXPECT_FALSE(parts.at[0].gate.dgate);
  EXPECT_EQ(parts.at[1].groups, 4);
  EXPECT_EQ(parts.at[1].shared_rows, 12);
  const int group = parts.at[1].shared_rank;
  EXPECT_EQ(parts.at[1].weight.stride_bytes[group], 32);
  EXPECT_EQ(parts.at[1].gate.bias.stride_bytes[group], 32);
  EXPECT_EQ(parts.at[1].gate.gate.stride_bytes[group], 32);
  EXPECT_EQ(parts.at[1].rstd.stride_bytes[group], 4);
  EXPECT_EQ(parts.at[1].rstd.stride_bytes[0], 16);
}

TEST(NormBackwardCheck, GroupsOfRowsOfStrideZero) {
  R r = gated_backward_request({4, 64}, kBF16);
  r.args.group_size = 32;
  r.mean.reset(), r.rstd.reset();
  r.dy->strides = {0, 0};
  const NormBackwardDesc d = described(r);
  EXPECT_EQ(d.dy_element_bytes, 0);
  for (const int64_t stride : d.dy.stride_bytes) EXPECT_EQ(stride, 0);
}

TEST(NormBackwardCheck, BiasOfTheForwardIsReadForDgateAlone) {
  R r = gated_backward_request({4, 3, 64}, kBF16);
  EXPECT_TRUE(described(r).gate.bias);
  r.dgate.reset();
  EXPECT_FALSE(described(r).gate.bias);
  r = gated_backward_request({4, 3, 64}, kBF16);
  r.dresidual_in.reset();
  r.args.gate_position = FASTNORM_GATE_BEFORE_NORM;
  EXPECT_FALSE(described(r).gate.bias);
}

TEST(NormBackwardCheck, DgateInPlace) {
  for (const auto member : {&R::dy, &R::x, &R::gate, &R::dresidual_in}) {
    R r = gated_backward_request({4, 3, 64}, kBF16);
    r.dgate->address = (r.*member)->address;
    EXPECT_TRUE(described(r).in_place);
  }
}

TEST(NormBackwardCheck, DgateAlone) {
  R r = gated_backward_request({4, 3, 64}, kBF16);
  r.dx.reset(), r.dweight.reset(), r.dbias.reset();
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 1);
  EXPECT_TRUE(parts.at[0].writes_rows());
  EXPECT_TRUE(parts.at[0].needs_statistics());
}

TEST(NormBackwardCheck, BranchAsDescribed) {
  R r = branch_backward_request({4, 3, 64}, kBF16);
  r.args.branch_rounding = FASTNORM_ROUND_EVERY_STEP;
  const NormBackwardDesc d = described(r);
  EXPECT_TRUE(d.branch.present && d.branch.normalise && d.branch.round_result);
  EXPECT_TRUE(d.branch.branch && d.branch.bias && d.branch.rstd && d.branch.mean);
  EXPECT_EQ(d.branch.alpha, 0.5f);
  EXPECT_EQ(d.branch.kind, FASTNORM_NORM_LAYER);
  EXPECT_EQ(d.outer_rank, 1);
  const NormBackwardParts parts = norm_backward_parts(d);
  ASSERT_EQ(parts.count, 1);
  EXPECT_EQ(count_sums(parts.at[0]), 5);
  EXPECT_EQ(parts.at[0].shared_rows, 12);
}

TEST(NormBackwardCheck, AnAlphaOfZeroIsAFactor) {
  R r = branch_backward_request({4, 3, 64}, kBF16);
  r.args.alpha = 0;
  EXPECT_EQ(described(r).branch.alpha, 0);
  r.args.flags &= ~uint32_t{FASTNORM_NORM_BACKWARD_ALPHA};
  EXPECT_EQ(described(r).branch.alpha, 1);
}

// What no output needs is not read, and without such an output the call is a plain one.
TEST(NormBackwardCheck, UnusedTensorsOfABranch) {
  R r = branch_backward_request({4, 3, 64}, kBF16);
  r.dresidual_gate.reset();
  EXPECT_FALSE(described(r).branch.bias);
  EXPECT_TRUE(described(r).branch.rstd);
  r.dbranch.reset(), r.dbranch_weight.reset();
  NormBackwardDesc d = described(r);
  EXPECT_FALSE(d.branch.branch || d.branch.rstd || d.branch.mean || d.branch.weight);
  EXPECT_TRUE(d.branch.residual_gate && d.branch.dbias);
  EXPECT_FALSE(d.branch.needs_norm());
  r.dbranch_bias.reset();
  d = described(r);
  EXPECT_FALSE(d.branch.residual_gate);
  EXPECT_TRUE(d.branch.present) << "sum_scale";
  r.sum_scale.reset();
  EXPECT_FALSE(described(r).branch.present);
}

TEST(NormBackwardCheck, TFollowsFromTheBranch) {
  R r = branch_backward_request({4, 3, 64}, kBF16);
  r.x->dtype = r.dx->dtype = r.dresidual_in->dtype = kF32;
  r.dresidual = backward_tensor(7, {4, 3, 64}, kF16);
  NormBackwardDesc d = described(r);
  EXPECT_EQ(d.dtype, Dtype::kBF16);
  EXPECT_EQ(d.dx.dtype, Dtype::kF32);
  without_norm(r);
  r.branch.reset(), r.dresidual_gate.reset();
  EXPECT_EQ(described(r).dtype, Dtype::kBF16) << "dbranch's";
}

// Each arrangement of sums has a part of its own. The last one writes rows, and only parts with
// sums of the branch have one.
TEST(NormBackwardCheck, PartsOfABranch) {
  R r = branch_backward_request({4, 3, 64}, kBF16);
  r.residual_gate->shape = r.dresidual_gate->shape = {4, 1, 64};
  r.dbranch_bias->shape = {3, 64};
  r.dbias->shape = {3, 64};
  NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 3);
  EXPECT_EQ(parts.at[0].groups, 3);
  EXPECT_TRUE(parts.at[0].dbias && parts.at[0].branch.dbias);
  EXPECT_EQ(count_sums(parts.at[0]), 2);
  EXPECT_FALSE(parts.at[0].writes_rows() || parts.at[0].in_place);
  EXPECT_TRUE(parts.at[0].dresidual_in) << "du needs it";
  EXPECT_EQ(parts.at[1].groups, 4);
  EXPECT_TRUE(parts.at[1].branch.dresidual_gate);
  EXPECT_EQ(count_sums(parts.at[1]), 1);
  EXPECT_EQ(parts.at[2].groups, 1);
  EXPECT_TRUE(parts.at[2].dweight && parts.at[2].branch.dweight && parts.at[2].dx);
  EXPECT_TRUE(parts.at[2].branch.dbranch);
  r.dbranch_bias.reset();
  parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 3);
  EXPECT_FALSE(parts.at[0].branch.present) << "dbias alone";
  EXPECT_FALSE(parts.at[0].dresidual_in || parts.at[0].weight);
}

TEST(NormBackwardCheck, DbranchInPlace) {
  R r = branch_backward_request({4, 3, 64}, kBF16);
  r.dbranch->address = r.branch->address;
  r.dx->address = r.dy->address;
  EXPECT_TRUE(described(r).in_place);
}

TEST(NormBackwardCheck, CompactDimensionsJoin) {
  const NormBackwardDesc d = described(good_request());
  EXPECT_EQ(d.outer_rank, 1);
  EXPECT_EQ(d.outer[0], 12);
  EXPECT_EQ(d.x.stride_bytes[0], 128);
  EXPECT_FALSE(d.in_place);
  EXPECT_EQ(d.dy_element_bytes, 2);
}

TEST(NormBackwardCheck, EightDimensionsJoin) {
  const NormBackwardDesc d = described(backward_request({2, 3, 1, 2, 2, 1, 5, 16}, kF16));
  EXPECT_EQ(d.rows, 120);
  EXPECT_EQ(d.outer_rank, 1);
}

TEST(NormBackwardCheck, TFollowsFromDxElseDyElseX) {
  R r = good_request();
  r.x->dtype = kF32;  // a stored residual_out
  EXPECT_EQ(described(r).dtype, Dtype::kBF16);
  r.dx.reset();
  EXPECT_EQ(described(r).dtype, Dtype::kBF16);
  r.dy->dtype = kF32;
  EXPECT_EQ(described(r).dtype, Dtype::kF32);
  r.x->dtype = kF16;
  EXPECT_EQ(described(r).dtype, Dtype::kF16);
}

TEST(NormBackwardCheck, InPlace) {
  for (const auto member : {&R::dy, &R::x, &R::dresidual_in}) {
    R r = good_request();
    r.dx->address = (r.*member)->address;
    EXPECT_TRUE(described(r).in_place);
  }
  R r = good_request();
  r.dresidual_in->dtype = kF32;
  r.dresidual = r.dresidual_in;
  EXPECT_TRUE(described(r).in_place);
}

TEST(NormBackwardCheck, InterleavedViews) {
  R r = good_request();  // dx in the gaps between rows of dy
  r.dy->strides = r.dx->strides = {384, 128, 1};
  r.dx->address = r.dy->address;
  r.dx->byte_offset = 128;
  EXPECT_FALSE(described(r).in_place);
}

TEST(NormBackwardCheck, ExpandedDy) {
  R r = good_request();
  r.dy->strides = {0, 0, 0};
  const NormBackwardDesc d = described(r);
  EXPECT_EQ(d.dy_element_bytes, 0);
  EXPECT_EQ(d.dy.stride_bytes[0], 0);
  r = backward_request({4, 1}, kBF16);
  r.dy->strides = {0, 0};
  EXPECT_EQ(described(r).dy_element_bytes, 2) << "a row of one element has any stride";
}

TEST(NormBackwardParts, RowsOfAHead) {
  R r = good_request();
  r.weight->shape = r.dweight->shape = r.dbias->shape = {3, 64};
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 1);
  const NormBackwardDesc& d = parts.at[0];
  EXPECT_EQ(d.shared_rows, 4);
  EXPECT_EQ(d.groups, 3);
  EXPECT_EQ(d.shared_rank, 1);
  EXPECT_EQ(d.outer[0], 4);
  EXPECT_EQ(d.outer[1], 3);
  EXPECT_EQ(d.x.stride_bytes[0], 3 * 128);
  EXPECT_EQ(d.x.stride_bytes[1], 128);
  EXPECT_EQ(d.dweight.stride_bytes[0], 0);
  EXPECT_EQ(d.dweight.stride_bytes[1], 128);
}

TEST(NormBackwardParts, BatchesKeepTheirRowsInOrder) {
  R r = good_request();
  r.weight->shape = r.dweight->shape = {4, 1, 64};
  r.dbias.reset();
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 1);
  EXPECT_EQ(parts.at[0].shared_rows, 3);
  EXPECT_EQ(parts.at[0].groups, 4);
  EXPECT_EQ(parts.at[0].x.stride_bytes[0], 128);
}

TEST(NormBackwardParts, BiasOfOtherGroupsComesFirstAndAlone) {
  R r = good_request();
  r.weight->shape = r.dweight->shape = {3, 64};
  r.dx->address = r.dy->address;
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 2);
  const NormBackwardDesc &bias = parts.at[0], &main = parts.at[1];
  EXPECT_TRUE(bias.dbias && !bias.dweight && !bias.dx && !bias.in_place);
  EXPECT_EQ(bias.shared_rows, 12);
  EXPECT_EQ(bias.groups, 1);
  EXPECT_TRUE(main.dweight && main.dx && !main.dbias && main.in_place);
  EXPECT_EQ(main.groups, 3);
}

TEST(NormBackwardParts, NoRows) {
  R r = backward_request({0, 3, 64}, kBF16);
  r.weight->shape = r.dweight->shape = {3, 64};
  r.args.flags = FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS;
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 1);
  EXPECT_TRUE(parts.at[0].dweight && !parts.at[0].dbias && !parts.at[0].dx);
  EXPECT_EQ(parts.at[0].shared_rows, 0);
  EXPECT_EQ(parts.at[0].groups, 3);
  r.args.flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT;
  EXPECT_EQ(norm_backward_parts(described(r)).count, 0);
}

TEST(NormBackwardParts, DxAloneHasNoSums) {
  R r = good_request();
  r.dweight.reset();
  r.dbias.reset();
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 1);
  EXPECT_FALSE(parts.at[0].has_sums());
  EXPECT_TRUE(parts.at[0].weight);
}

TEST(NormBackwardMany, PartsMustNotMeet) {
  const NormBackwardDesc a = described(good_request());
  R other = good_request();
  for (const auto member : {&R::dx, &R::dweight, &R::dbias})
    (other.*member)->byte_offset = uint64_t{1} << 40;
  Error error;
  EXPECT_EQ(check_norm_backward_many(std::vector{a, described(other)}, "args", error), FASTNORM_OK)
      << error.text;  // inputs may be the same
  other.dx->byte_offset = 0;
  EXPECT_EQ(check_norm_backward_many(std::vector{a, described(other)}, "args", error),
            FASTNORM_ERROR_LAYOUT);
  EXPECT_NE(std::strstr(error.text, "args[0].dx"), nullptr) << error.text;
  EXPECT_NE(std::strstr(error.text, "args[1].dx"), nullptr) << error.text;
}

}  // namespace
}  // namespace fastnorm::test
