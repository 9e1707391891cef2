// Descriptions and plans of norm_heads. calls/norm_heads.txt has the calls that are refused.
#include "core/norm_heads/check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/norm_heads/plan.h"
#include "unit/call_table.h"
#include "unit/norm_heads/request.h"

namespace fastnorm::test {
namespace {

const CheckedFamily kFamily("norm_heads", check_norm_heads);

using Part = HeadsPartRequest;

RequestTensor tensor(std::vector<int64_t> shape, fastnorm_dtype_id dtype, int number) {
  RequestTensor t;
  t.shape = std::move(shape);
  t.dtype = dtype;
  t.address = uintptr_t{0x100000} + (static_cast<uintptr_t>(number) << 40);
  return t;
}

// The key's cache as codes with scales of blocks.
void make_codes(HeadsRequest& r) {
  Part& p = r.parts[1];
  p.cache_quant.scheme = FASTNORM_QUANT_PER_BLOCK;
  p.cache_quant.block_size = 64;
  p.cache->dtype = FASTNORM_DTYPE_F8_E4M3FN;
  p.cache_scale = tensor({5, 16, 2, 2}, FASTNORM_DTYPE_F32, 40);
}

// The query also quantised as MXFP4.
void make_quantized(HeadsRequest& r) {
  Part& p = r.parts[0];
  p.quant.scheme = FASTNORM_QUANT_MXFP4;
  p.quantized = tensor({7, 8, 64}, FASTNORM_DTYPE_F4_E2M1FN_X2, 42);
  p.scale = tensor({7, 8, 4}, FASTNORM_DTYPE_F8_E8M0FNU, 43);
}

void make_mrope(HeadsRequest& r) {
  r.positions->shape = {3, 7};
  r.args.mrope_0 = 24, r.args.mrope_1 = r.args.mrope_2 = 20;
}

TEST(NormHeadsCheck, AnUnknownTailMustBeZero) {
  struct Longer {
    fastnorm_norm_heads_args args;
    uint64_t more;
  };
  Longer longer = {};
  longer.args.struct_size = sizeof longer;
  NormHeadsDesc desc;
  Error error;
  const CheckedDevice cpu = {FASTNORM_DEVICE_CPU, 0};
  EXPECT_EQ(check_norm_heads(&longer.args, nullptr, 0, cpu, &desc, error), FASTNORM_OK);
  EXPECT_TRUE(desc.empty());
  longer.more = 1;
  EXPECT_EQ(check_norm_heads(&longer.args, nullptr, 0, cpu, &desc, error),
            FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_EQ(check_norm_heads(nullptr, nullptr, 0, cpu, &desc, error), FASTNORM_ERROR_ARGUMENT);
  longer.more = 0;
  EXPECT_EQ(check_norm_heads(&longer.args, nullptr, 1, cpu, &desc, error), FASTNORM_ERROR_ARGUMENT);
}

TEST(NormHeadsCheck, ADescription) {
  HeadsRequest r = heads_request();
  make_mrope(r);
  make_codes(r);
  r.args.rope_dim = 64;
  r.cos->shape = r.sin->shape = {2, 4096, 64};  // repeated, a table for each head
  r.parts[0].args.flags = FASTNORM_NORM_HEADS_NORM;
  r.parts[1].args.rope_offset = -1;
  r.args.mrope_0 = 12, r.args.mrope_1 = r.args.mrope_2 = 10;
  NormHeadsDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.tokens, 7);
  EXPECT_EQ(d.count, 3);
  EXPECT_EQ(d.dtype, Dtype::kBF16);
  EXPECT_TRUE(d.table_repeats && !d.mrope_interleaved);
  EXPECT_EQ(d.axes, 3);
  EXPECT_EQ(d.section_end[0], 12);
  EXPECT_EQ(d.section_end[1], 22);
  EXPECT_EQ(d.section_end[2], 32);
  EXPECT_EQ(d.cos.head_stride, 4096 * 64 * 4);
  EXPECT_EQ(d.cos.row_stride, 64 * 4);
  EXPECT_EQ(d.positions.axis_stride, 7 * 8);
  const NormHeadsPart& key = d.parts[1];
  EXPECT_EQ(key.rope_offset, 64);
  EXPECT_EQ(key.token_stride, 12 * 256);
  EXPECT_EQ(key.head_stride, 256);
  EXPECT_EQ(key.cache.page_size, 16);
  EXPECT_EQ(key.cache.rows.stride_bytes[1], 256);
  EXPECT_EQ(key.cache.quant.scale.stride_bytes[2], 16 * 2 * 2 * 4);
  EXPECT_FALSE(d.parts[2].normalise || d.parts[2].rope);
}

TEST(NormHeadsCheck, QuantisedHeads) {
  HeadsRequest r = heads_request();
  make_quantized(r);
  r.parts[0].clamp_scale = tensor({1}, FASTNORM_DTYPE_F32, 44);
  NormHeadsDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  const QuantDesc& q = d.parts[0].norm.quant;
  EXPECT_EQ(q.scheme, FASTNORM_QUANT_MXFP4);
  EXPECT_EQ(q.block, 32);
  EXPECT_TRUE(q.clamp_scale != nullptr && q.pow2 && !q.divides);
  // If a part has both kinds of codes, the division applies to those that support it.
  make_codes(r);
  r.parts[0].clamp_scale.reset();
  r.parts[0].cache_quant.scheme = FASTNORM_QUANT_PER_TENSOR;
  r.parts[0].cache = tensor({5, 16, 8, 128}, FASTNORM_DTYPE_F8_E4M3FN, 45);
  r.parts[0].cache_scale = tensor({1}, FASTNORM_DTYPE_F32, 46);
  r.parts[0].cache_quant.division = r.parts[1].cache_quant.division = FASTNORM_QUANT_DIVIDE;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_TRUE(d.parts[0].cache.quant.divides && d.parts[1].cache.quant.divides);
  EXPECT_FALSE(d.parts[0].norm.quant.divides || d.parts[1].norm.quant.divides);
  r.parts[1].cache_quant.scale_pow2 = 1;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_FALSE(d.parts[1].cache.quant.divides) << "the same codes either way";
}

TEST(NormHeadsCheck, YOfF32) {
  HeadsRequest r = heads_request();
  r.parts[0].y = tensor({7, 8, 128}, FASTNORM_DTYPE_F32, 40);
  NormHeadsDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.parts[0].norm.y.dtype, Dtype::kF32);
  NormHeadsPlan plan;
  DeviceFacts facts;
  ASSERT_EQ(plan_norm_heads(d, facts, {}, &plan, error), FASTNORM_OK) << error.text;
  // y of the query, y of the key, and two caches.
  EXPECT_EQ(plan.bytes_written, uint64_t{7 * 128 * (8 * 4 + 2 * 2 + 2 * 2 * 2)});
}

TEST(NormHeadsCheck, NothingToDo) {
  HeadsRequest r = heads_request();
  for (Part& p : r.parts) {
    p.x->shape[0] = 0;
    if (p.y) p.y->shape[0] = 0;
  }
  r.positions->shape = r.slots->shape = {0};
  NormHeadsDesc d;
  Error error;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_TRUE(d.empty());
  NormHeadsPlan plan;
  DeviceFacts facts;
  EXPECT_EQ(plan_norm_heads(d, facts, {}, &plan, error), FASTNORM_OK);
  EXPECT_EQ(plan.launches, 0);
  EXPECT_STREQ(plan.kernel, "");
  r.parts[0].args.eps = -1;  // wrong, though there is nothing to do
  EXPECT_EQ(r.check(&d, error), FASTNORM_ERROR_ARGUMENT);
}

TEST(NormHeadsCheck, BytesOfAPlan) {
  HeadsRequest r = heads_request();
  r.slots->shape = {5};
  NormHeadsDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  NormHeadsPlan plan;
  DeviceFacts facts;
  ASSERT_EQ(plan_norm_heads(d, facts, {}, &plan, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(plan.launches, 1);
  EXPECT_STREQ(plan.kernel, "bf16");
  const uint64_t heads = 128 * 2;
  EXPECT_EQ(plan.bytes_read, 7 * 12 * heads + 2 * heads + 2 * 7 * 64 * 4 + 7 * 8 + 5 * 8);
  EXPECT_EQ(plan.bytes_written, 7 * 10 * heads + 5 * 4 * heads);
  facts.device_type = FASTNORM_DEVICE_CUDA;
  EXPECT_EQ(plan_norm_heads(d, facts, {}, &plan, error), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(error.text, "no kernels of norm_heads"), nullptr) << error.text;
}

TEST(NormHeadsCheck, ValuesOnTheHost) {
  std::vector<int64_t> position = {0, 4095, 17, 1, 2, 3, 4}, slot = {0, 79, -1, 5, 6, 7, 8};
  HeadsRequest r = heads_request();
  r.positions->address = reinterpret_cast<uintptr_t>(position.data());
  r.slots->address = reinterpret_cast<uintptr_t>(slot.data());
  NormHeadsDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(check_norm_heads_values(d, error), FASTNORM_OK) << error.text;
  const struct {
    int64_t* at;
    int64_t value;
    const char* text;
  } bad[] = {{&position[3], 4096, "the position of token 3, axis 0, is 4096; required: 0 to 4095"},
             {&position[6], -1, "the position of token 6, axis 0, is -1"},
             {&slot[1], 80, "slots[1] is 80; required: -1, or 0 to the 5 pages of 16"},
             {&slot[6], -2, "slots[6] is -2"}};
  for (const auto& b : bad) {
    const int64_t before = *b.at;
    *b.at = b.value;
    EXPECT_EQ(check_norm_heads_values(d, error), FASTNORM_ERROR_ARGUMENT);
    EXPECT_NE(std::strstr(error.text, b.text), nullptr) << error.text;
    *b.at = before;
  }
  // Positions of padding: of a slot of -1, and behind the last slot.
  position[2] = 4096, position[6] = -1;
  r.slots->shape = {6};
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(check_norm_heads_values(d, error), FASTNORM_OK) << error.text;
  position[5] = INT64_MAX;
  EXPECT_EQ(check_norm_heads_values(d, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::strstr(error.text, "the position of token 5"), nullptr) << error.text;
  // All tokens are padding without a slot, and none in a call without slots.
  r.slots->shape = {0};
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(check_norm_heads_values(d, error), FASTNORM_OK) << error.text;
  r.slots.reset();
  for (Part& p : r.parts) p.cache.reset();
  r.parts[2].y = tensor({7, 2, 128}, FASTNORM_DTYPE_BF16, 40);
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(check_norm_heads_values(d, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::strstr(error.text, "the position of token 2"), nullptr) << error.text;
}

}  // namespace
}  // namespace fastnorm::test
