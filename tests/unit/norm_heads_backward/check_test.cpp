// Descriptions of the parts of gradients of norm_heads. calls/norm_heads_backward.txt has the calls
// that are refused.
#include "core/norm_heads_backward/check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "core/norm_backward/cpu_plan.h"
#include "unit/call_table.h"
#include "unit/norm_heads_backward/request.h"

namespace fastnorm::test {
namespace {

const CheckedFamily kFamily("norm_heads_backward", check_norm_heads_backward);

using Request = BackwardHeadsRequest;

RequestTensor tensor(std::vector<int64_t> shape, fastnorm_dtype_id dtype, int number) {
  return backward_heads_tensor(std::move(shape), dtype, number);
}
Request request() { return backward_heads_request(); }

NormHeadsBackwardDesc checked(const Request& r) {
  auto d = std::make_unique<NormHeadsBackwardDesc>();
  Error error;
  EXPECT_EQ(r.check(d.get(), error), FASTNORM_OK) << error.text;
  return *d;
}

TEST(CheckNormHeadsBackward, PartsOfAPackedGradient) {
  const NormHeadsBackwardDesc d = checked(request());
  EXPECT_EQ(d.tokens, 7);
  EXPECT_EQ(d.count, 3);
  const NormBackwardDesc &q = d.wholes[0], &k = d.wholes[1], &v = d.wholes[2];
  EXPECT_TRUE(q.of_heads.needs_own_kernels());
  EXPECT_TRUE(q.of_heads.normalise && q.of_heads.rope);
  EXPECT_EQ(q.rows, 56);
  EXPECT_EQ(q.outer_rank, 2);  // tokens and heads do not join
  EXPECT_EQ(q.of_heads.token.stride_bytes[0], 0);
  EXPECT_EQ(q.of_heads.token.stride_bytes[1], 1);
  EXPECT_EQ(q.of_heads.head.stride_bytes[0], 1);
  EXPECT_EQ(q.of_heads.tables.table_rows, 4096);
  EXPECT_EQ(v.of_heads.heads, 2);
  EXPECT_FALSE(v.of_heads.normalise);
  EXPECT_FALSE(v.x);
  EXPECT_EQ(v.x.dtype, Dtype::kBF16);
  // The key's dweight has a row for each head, its dbias does not: two parts, dbias first.
  const NormBackwardParts parts = norm_backward_parts(k);
  ASSERT_EQ(parts.count, 2);
  EXPECT_FALSE(parts.at[0].dx);
  EXPECT_EQ(parts.at[0].groups, 1);
  EXPECT_EQ(parts.at[1].groups, 2);
  EXPECT_EQ(parts.at[1].shared_rows, 7);
  EXPECT_EQ(parts.at[1].of_heads.token.stride_bytes[0], 1);  // tokens are the first digit there
  EXPECT_EQ(parts.at[1].of_heads.head.stride_bytes[1], 1);
}

TEST(CheckNormHeadsBackward, NormAloneIsNormBackward) {
  Request r = request();
  r.parts.resize(1);
  r.parts[0].args.flags = FASTNORM_NORM_HEADS_NORM;
  r.parts[0].dx = r.parts[0].dy;  // in place, and compact
  r.args.rope_dim = 0;
  r.cos.reset(), r.sin.reset(), r.positions.reset();
  const NormHeadsBackwardDesc d = checked(r);
  EXPECT_FALSE(d.wholes[0].of_heads.needs_own_kernels());
  EXPECT_EQ(d.wholes[0].outer_rank, 1);  // tokens and heads join
  EXPECT_TRUE(d.wholes[0].in_place);
}

TEST(CheckNormHeadsBackward, SlotsAreNotLookedAt) {
  Request r = request();
  r.slots = tensor({9999}, FASTNORM_DTYPE_F16, 50);
  checked(r);
}

TEST(CheckNormHeadsBackward, AcceptedForms) {
  Request r = request();
  r.parts[0].dy->strides = {1, 0, 0};  // one element for each token
  r.parts[1].args.flags |= FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED;
  r.parts[2].dy->dtype = FASTNORM_DTYPE_F32;
  EXPECT_EQ(checked(r).wholes[0].dy_element_bytes, 0);
  r = request();
  r.parts[1].args.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
  r.parts[1].rstd->shape = {7};
  const NormHeadsBackwardDesc d = checked(r);
  EXPECT_EQ(d.wholes[1].rstd.stride_bytes[0], 0);  // one for all heads
  EXPECT_EQ(d.wholes[1].rstd.stride_bytes[1], 4);
  EXPECT_EQ(d.wholes[1].inv_n, 1.0f / 256.0f);
  for (BackwardHeadsPart& p : r.parts) p.dx.reset();
  r.parts.resize(2);
  EXPECT_FALSE(checked(r).wholes[0].dx);
}

TEST(CheckNormHeadsBackward, NoTokensAndNoParts) {
  Request r = request();
  for (BackwardHeadsPart& p : r.parts) {
    p.dy->shape[0] = p.dx->shape[0] = 0;
    if (p.x) p.x->shape[0] = 0;
    if (p.rstd) p.rstd->shape[0] = 0;
  }
  r.positions->shape = {0};
  const NormHeadsBackwardDesc d = checked(r);
  EXPECT_EQ(d.wholes[0].rows, 0);
  EXPECT_EQ(norm_backward_parts(d.wholes[0]).at[0].shared_rows, 0);
  r.parts.clear();
  r.args.rope_dim = 0;
  r.cos.reset(), r.sin.reset(), r.positions.reset();
  EXPECT_EQ(checked(r).count, 0);
}

TEST(CheckNormHeadsBackward, PlansOfTheCpu) {
  Request r = request();
  r.parts.resize(1);
  r.parts[0].dbias.reset();
  DeviceFacts facts;
  NormBackwardPlan plan;
  Error error;
  const NormBackwardDesc one = norm_backward_parts(checked(r).wholes[0]).at[0];
  ASSERT_EQ(plan_norm_backward_cpu(one, facts, &plan, error), FASTNORM_OK);
  const uint64_t rows = 7 * 8 * 128 * 2;
  EXPECT_EQ(plan.bytes_read, 2 * rows + 128 * 2 + 2 * 7 * 64 * 4 + 7 * 8);
  EXPECT_EQ(plan.bytes_written, rows + 128 * 4);
  EXPECT_EQ(plan.workspace_bytes, 128 * 4u);  // 64 lanes: a block of 56 rows
  EXPECT_EQ(norm_backward_tokens(one), 0);
  r.parts[0].args.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
  const NormBackwardDesc all = norm_backward_parts(checked(r).wholes[0]).at[0];
  ASSERT_EQ(plan_norm_backward_cpu(all, facts, &plan, error), FASTNORM_OK);
  EXPECT_EQ(norm_backward_tokens(all), 7);
  EXPECT_EQ(plan.token_values_offset, 128 * 4u);
  EXPECT_EQ(plan.workspace_bytes, 128 * 4u + 7 * 16);
}

TEST(CheckNormHeadsBackward, Positions) {
  std::vector<int64_t> position = {0, 4095, 17, 1, 2, 3, 4};
  Request r = request();
  r.positions->address = reinterpret_cast<uintptr_t>(position.data());
  const NormHeadsBackwardDesc d = checked(r);
  Error error;
  EXPECT_EQ(check_rope_positions(d.wholes[0].of_heads.tables, 7, error), FASTNORM_OK);
  position[2] = 4096;
  EXPECT_EQ(check_rope_positions(d.wholes[0].of_heads.tables, 7, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::strstr(error.text, "the position of token 2, axis 0, is 4096"), nullptr)
      << error.text;
}

}  // namespace
}  // namespace fastnorm::test
