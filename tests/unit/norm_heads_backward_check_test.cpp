// Every requirement of fastnorm/norm_heads_backward.h, broken once. Checks the status, and that the
// text names the argument, its value and what is required. Also the descriptions of parts.
#include "core/norm_heads_backward_check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/norm_backward_cpu_plan.h"
#include "unit/norm_heads_backward_request.h"

namespace fastnorm::test {
namespace {

using Request = BackwardHeadsRequest;

RequestTensor tensor(std::vector<int64_t> shape, fastnorm_dtype_id dtype, int number) {
  return backward_heads_tensor(std::move(shape), dtype, number);
}
Request request() { return backward_heads_request(); }

struct BadCall {
  const char* name;
  fastnorm_status status;
  const char* texts[3];  // those that are not null are in the message
  void (*spoil)(Request&);
};

template <class Enum>
void set(Enum& field, int32_t value) {
  std::memcpy(&field, &value, sizeof value);
}

const BadCall kBadCalls[] = {
    // structs and counts
    {"args' struct_size one short",
     FASTNORM_ERROR_ARGUMENT,
     {"args.struct_size is 63", "64"},
     [](Request& r) { r.args.struct_size -= 1; }},
    {"part's struct_size one short",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].struct_size is 95", "96"},
     [](Request& r) { r.parts[1].args.struct_size -= 1; }},
    {"count 9", FASTNORM_ERROR_ARGUMENT, {"count is 9", "0 to 8"}, [](Request& r) { r.count = 9; }},
    {"part NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0] is NULL"},
     [](Request& r) { r.null_part = true; }},
    // flags
    {"unknown flag",
     FASTNORM_ERROR_UNSUPPORTED,
     {"parts[0].flags is 0x103", "nearest: flags 0x3"},
     [](Request& r) { r.parts[0].args.flags |= 256; }},
    {"inverse without rope",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].flags is 0x8", "FASTNORM_NORM_HEADS_ROPE (2)"},
     [](Request& r) { r.parts[2].args.flags = 8; }},
    {"across without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].flags is 0x20", "FASTNORM_NORM_HEADS_NORM (1)"},
     [](Request& r) { r.parts[2].args.flags = 32; }},
    {"accumulate without dweight",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].flags is 0x43 and dweight is NULL", "ACCUMULATE_DWEIGHT (64)"},
     [](Request& r) {
       r.parts[0].args.flags |= 64;
       r.parts[0].dweight.reset();
     }},
    {"accumulate without dbias",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].flags is 0x80 and dbias is NULL", "ACCUMULATE_DBIAS (128)"},
     [](Request& r) { r.parts[2].args.flags |= 128; }},
    // outputs
    {"no output",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].dx is NULL, dweight is NULL and dbias is NULL", "one output"},
     [](Request& r) { r.parts[2].dx.reset(); }},
    {"dweight without weight",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].dweight is given and weight is NULL"},
     [](Request& r) { r.parts[0].weight.reset(); }},
    // fields that only a norm uses
    {"x without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].x is given", "without FASTNORM_NORM_HEADS_NORM"},
     [](Request& r) { r.parts[2].x = r.parts[2].dy; }},
    {"eps without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].eps is 1"},
     [](Request& r) { r.parts[2].args.eps = 1; }},
    {"kind without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].kind is 1"},
     [](Request& r) { r.parts[2].args.kind = FASTNORM_NORM_LAYER; }},
    {"rounding without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].rounding is 2"},
     [](Request& r) { r.parts[2].args.rounding = FASTNORM_ROUND_EVERY_STEP; }},
    {"offset without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].weight_offset is 1"},
     [](Request& r) { r.parts[2].args.weight_offset = 1; }},
    {"weight without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].weight is given"},
     [](Request& r) { r.parts[2].weight = r.parts[0].weight; }},
    {"rstd without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].rstd is given"},
     [](Request& r) { r.parts[2].rstd = r.parts[1].rstd; }},
    {"dbias without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].dbias is given"},
     [](Request& r) { r.parts[2].dbias = r.parts[0].dbias; }},
    // the norm's
    {"kind 2",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].kind is 2"},
     [](Request& r) { set(r.parts[0].args.kind, 2); }},
    {"eps negative",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].eps is -1"},
     [](Request& r) { r.parts[0].args.eps = -1; }},
    {"rounding 9",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].rounding is 9"},
     [](Request& r) { set(r.parts[0].args.rounding, 9); }},
    {"offset without weight",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].weight_offset is 1", "weight is NULL"},
     [](Request& r) {
       r.parts[0].args.weight_offset = 1;
       r.parts[0].weight.reset();
       r.parts[0].dweight.reset();
     }},
    {"mean of RMS",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].mean is given", "FASTNORM_NORM_LAYER"},
     [](Request& r) {
       r.parts[1].mean = tensor({7, 2}, FASTNORM_DTYPE_F32, 60);
     }},
    {"rstd of LAYER alone",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].rstd is given and mean is NULL"},
     [](Request& r) { r.parts[1].args.kind = FASTNORM_NORM_LAYER; }},
    {"rstd bf16",
     FASTNORM_ERROR_DTYPE,
     {"parts[1].rstd.dtype is bf16", "f32"},
     [](Request& r) { r.parts[1].rstd->dtype = FASTNORM_DTYPE_BF16; }},
    {"rstd of other heads",
     FASTNORM_ERROR_SHAPE,
     {"parts[1].rstd.shape is [7, 8]", "[7, 2]"},
     [](Request& r) {
       r.parts[1].rstd->shape = {7, 8};
     }},
    {"rstd by head across heads",
     FASTNORM_ERROR_SHAPE,
     {"rstd.shape is [7, 2]", "[7]", "ACROSS_HEADS"},
     [](Request& r) { r.parts[1].args.flags |= 32; }},
    // rows
    {"dy NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].dy is NULL", "[tokens, heads, d]"},
     [](Request& r) { r.parts[1].dy.reset(); }},
    {"x NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].x is NULL", "FASTNORM_NORM_HEADS_NORM (1)"},
     [](Request& r) { r.parts[1].x.reset(); }},
    {"dy of rank 2",
     FASTNORM_ERROR_SHAPE,
     {"parts[1].dy.ndim is 2", "3"},
     [](Request& r) { r.parts[1].dy->ndim = 2; }},
    {"dy i32",
     FASTNORM_ERROR_DTYPE,
     {"parts[0].dy.dtype is i32"},
     [](Request& r) { r.parts[0].dy->dtype = FASTNORM_DTYPE_I32; }},
    {"dy f16 beside bf16",
     FASTNORM_ERROR_DTYPE,
     {"parts[0].dy.dtype is f16", "bf16, or f32, as x is bf16"},
     [](Request& r) { r.parts[0].dy->dtype = FASTNORM_DTYPE_F16; }},
    {"dx f32 beside bf16",
     FASTNORM_ERROR_DTYPE,
     {"parts[0].dx.dtype is f32", "x's, bf16"},
     [](Request& r) { r.parts[0].dx->dtype = FASTNORM_DTYPE_F32; }},
    {"x of other heads",
     FASTNORM_ERROR_SHAPE,
     {"parts[0].x.shape is [7, 2, 128]", "dy's, [7, 8, 128]"},
     [](Request& r) { r.parts[0].x->shape[1] = 2; }},
    {"dx of other heads",
     FASTNORM_ERROR_SHAPE,
     {"parts[0].dx.shape is [7, 2, 128]", "dy's"},
     [](Request& r) { r.parts[0].dx->shape[1] = 2; }},
    {"no heads",
     FASTNORM_ERROR_SHAPE,
     {"parts[2].dy.shape is [7, 0, 128]", "1 head"},
     [](Request& r) { r.parts[2].dy->shape[1] = r.parts[2].dx->shape[1] = 0; }},
    {"no columns",
     FASTNORM_ERROR_SHAPE,
     {"parts[2].dy.shape is [7, 2, 0]", "1 column"},
     [](Request& r) { r.parts[2].dy->shape[2] = r.parts[2].dx->shape[2] = 0; }},
    {"too many columns",
     FASTNORM_ERROR_UNSUPPORTED,
     {"parts[2].dy.shape is [7, 2, 8193]", "at most 8192"},
     [](Request& r) {
       r.parts[2].dx->strides = {};
       r.parts[2].dy->shape[2] = r.parts[2].dx->shape[2] = 8193;
     }},
    {"other tokens",
     FASTNORM_ERROR_SHAPE,
     {"parts[2].dy.shape is [6, 2, 128]", "7 tokens of parts[0].dy"},
     [](Request& r) { r.parts[2].dy->shape[0] = r.parts[2].dx->shape[0] = 6; }},
    {"other T",
     FASTNORM_ERROR_DTYPE,
     {"parts[2].dx.dtype is f16", "bf16, as in parts[0]"},
     [](Request& r) { r.parts[2].dy->dtype = r.parts[2].dx->dtype = FASTNORM_DTYPE_F16; }},
    {"dx not contiguous",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].dx.strides[2] is 2"},
     [](Request& r) { r.parts[0].dx->strides[2] = 2; }},
    {"dy of every other column",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].dy.strides[2] is 2"},
     [](Request& r) {
       r.parts[0].dy->strides = {2048, 256, 2};
     }},
    {"dx on CUDA",
     FASTNORM_ERROR_DEVICE,
     {"parts[0].dx is on device CUDA:0"},
     [](Request& r) { r.parts[0].dx->device_type = FASTNORM_DEVICE_CUDA; }},
    // columns
    {"weight of rank 3",
     FASTNORM_ERROR_SHAPE,
     {"parts[0].weight.ndim is 3", "[heads, d]"},
     [](Request& r) {
       r.parts[0].weight->shape = r.parts[0].dweight->shape = {1, 1, 128};
     }},
    {"dbias of rank 3",
     FASTNORM_ERROR_SHAPE,
     {"parts[0].dbias.ndim is 3"},
     [](Request& r) {
       r.parts[0].dbias->shape = {7, 1, 128};
     }},
    {"dweight shared",
     FASTNORM_ERROR_SHAPE,
     {"parts[1].dweight.shape is [128]", "weight's, [2, 128]"},
     [](Request& r) { r.parts[1].dweight->shape = {128}; }},
    {"dweight f16",
     FASTNORM_ERROR_DTYPE,
     {"parts[1].dweight.dtype is f16", "bf16, or f32"},
     [](Request& r) { r.parts[1].dweight->dtype = FASTNORM_DTYPE_F16; }},
    {"dbias of other columns",
     FASTNORM_ERROR_SHAPE,
     {"parts[0].dbias.shape is [64]"},
     [](Request& r) { r.parts[0].dbias->shape = {64}; }},
    // rope, by the forward's checks
    {"rope_offset without rope",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].rope_offset is 8"},
     [](Request& r) { r.parts[2].args.rope_offset = 8; }},
    {"rope_offset -2",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].rope_offset is -2"},
     [](Request& r) { r.parts[0].args.rope_offset = -2; }},
    {"rope past the row",
     FASTNORM_ERROR_SHAPE,
     {"parts[1].rope_offset is 1", "rope_dim is 128"},
     [](Request& r) { r.parts[1].args.rope_offset = 1; }},
    {"rope_dim odd",
     FASTNORM_ERROR_SHAPE,
     {"rope_dim is 127", "even"},
     [](Request& r) { r.args.rope_dim = 127; }},
    {"cos NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"cos is NULL", "ROPE"},
     [](Request& r) { r.cos.reset(); }},
    {"sin of other shape",
     FASTNORM_ERROR_SHAPE,
     {"sin.shape is [4096, 128]"},
     [](Request& r) { r.sin->shape[1] = 128; }},
    {"cos f16",
     FASTNORM_ERROR_DTYPE,
     {"cos.dtype is f16", "f32 or bf16"},
     [](Request& r) { r.cos->dtype = FASTNORM_DTYPE_F16; }},
    {"tables of other heads",
     FASTNORM_ERROR_SHAPE,
     {"cos.shape is [2, 4096, 64]", "8 heads"},
     [](Request& r) {
       r.cos->shape = r.sin->shape = {2, 4096, 64};
     }},
    {"positions of other tokens",
     FASTNORM_ERROR_SHAPE,
     {"positions.shape is [6]"},
     [](Request& r) { r.positions->shape = {6}; }},
    {"too few rows of tables",
     FASTNORM_ERROR_SHAPE,
     {"cos has 6 rows for 7 tokens"},
     [](Request& r) {
       r.positions.reset();
       r.cos->shape[0] = r.sin->shape[0] = 6;
     }},
    {"sections without axes",
     FASTNORM_ERROR_SHAPE,
     {"mrope_1 is 4"},
     [](Request& r) { r.args.mrope_1 = 4; }},
    // overlap
    {"dx over cos",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].dx [", "overlaps cos"},
     [](Request& r) { r.cos->address = r.parts[0].dx->address; }},
    {"dweight over sin",
     FASTNORM_ERROR_LAYOUT,
     {"parts[1].dweight [", "overlaps sin"},
     [](Request& r) { r.sin->address = r.parts[1].dweight->address - 256; }},
    {"dbias over positions",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].dbias [", "overlaps positions"},
     [](Request& r) { r.positions->address = r.parts[0].dbias->address + 8; }},
    {"dx over another part's dx",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].dx [", "overlaps parts[1].dx"},
     [](Request& r) { r.parts[1].dx->byte_offset -= 2; }},
    {"dweight over another part's dy",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].dweight [", "overlaps parts[2].dy", "no part touches"},
     [](Request& r) { r.parts[2].dy->address = r.parts[0].dweight->address; }},
    {"dx over dy, shifted",
     FASTNORM_ERROR_LAYOUT,
     {"parts[2].dx [", "the same view"},
     [](Request& r) {
       r.parts[2].dx = r.parts[2].dy;
       r.parts[2].dx->byte_offset = 2;
     }},
    {"dx over its weight",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].dx [", "overlaps weight"},
     [](Request& r) { r.parts[0].weight->address = r.parts[0].dx->address; }},
    {"dx over itself",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].dx overlaps itself"},
     [](Request& r) {
       r.parts[0].dx->strides = {12 * 128, 64, 1};
     }},
    {"rows past the address space",
     FASTNORM_ERROR_LAYOUT,
     {"cos's strides reach past"},
     [](Request& r) {
       r.cos->strides = {int64_t{1} << 60, 1};
     }},
};

NormHeadsBackwardDesc checked(const Request& r) {
  auto d = std::make_unique<NormHeadsBackwardDesc>();
  Error error;
  EXPECT_EQ(r.check(d.get(), error), FASTNORM_OK) << error.text;
  return *d;
}

TEST(CheckNormHeadsBackward, BrokenRules) {
  for (const BadCall& bad : kBadCalls) {
    SCOPED_TRACE(bad.name);
    Request r = request();
    bad.spoil(r);
    NormHeadsBackwardDesc d;
    Error error;
    EXPECT_EQ(r.check(&d, error), bad.status) << error.text;
    for (const char* text : bad.texts) {
      if (text == nullptr) continue;
      EXPECT_NE(std::strstr(error.text, text), nullptr) << error.text;
    }
  }
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
  EXPECT_EQ(plan.workspace_bytes, 2 * 128 * 4u);  // 32 lanes: 2 blocks of 56 rows
  EXPECT_EQ(norm_backward_tokens(one), 0);
  r.parts[0].args.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
  const NormBackwardDesc all = norm_backward_parts(checked(r).wholes[0]).at[0];
  ASSERT_EQ(plan_norm_backward_cpu(all, facts, &plan, error), FASTNORM_OK);
  EXPECT_EQ(norm_backward_tokens(all), 7);
  EXPECT_EQ(plan.token_values_offset, 2 * 128 * 4u);
  EXPECT_EQ(plan.workspace_bytes, 2 * 128 * 4u + 7 * 16);
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
