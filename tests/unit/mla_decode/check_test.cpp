// What is made of calls of mla_decode that are right. calls/mla_decode.txt has those that are not.
#include "core/mla_decode/check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "unit/call_table.h"
#include "unit/mla_decode/request.h"

namespace fastnorm::test {
namespace {

const CheckedFamily kFamily("mla_decode", check_mla_decode);

// 3 requests of 2 tokens, 4 heads, 10 pages of 64 tokens.
MlaRequest good_request() { return mla_request(3, 2, 4, 10, 64, 5); }

TEST(MlaDecodeCheck, AnUnknownTailMustBeZero) {
  struct Longer {
    fastnorm_mla_decode_args args;
    uint64_t more;
  };
  MlaDecodeDesc desc;
  Error error;
  Longer longer = {};
  longer.args.struct_size = sizeof longer;
  longer.args.sm_scale = 1;
  const auto* args = reinterpret_cast<const fastnorm_mla_decode_args*>(&longer);
  EXPECT_EQ(check_mla_decode(args, {FASTNORM_DEVICE_CPU, 0}, &desc, error),
            FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::strstr(error.text, "q_nope is NULL"), nullptr) << error.text;
  longer.more = 1;
  EXPECT_EQ(check_mla_decode(args, {FASTNORM_DEVICE_CPU, 0}, &desc, error),
            FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_EQ(check_mla_decode(nullptr, {FASTNORM_DEVICE_CPU, 0}, &desc, error),
            FASTNORM_ERROR_ARGUMENT);
}

TEST(MlaDecodeCheck, ADescriptionOfABlockTable) {
  MlaRequest r = good_request();
  r.args.causal = 1;
  r.args.lse_base = FASTNORM_LSE_BASE_2;
  r.args.split_tokens = 128;
  MlaDecodeDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.tokens, 6);
  EXPECT_EQ(d.heads, 4);
  EXPECT_EQ(d.batch, 3);
  EXPECT_EQ(d.max_s_q, 2);
  EXPECT_EQ(d.rows(), 8);
  EXPECT_EQ(d.pages, 10);
  EXPECT_EQ(d.page_size, 64);
  EXPECT_EQ(d.dtype, Dtype::kBF16);
  EXPECT_TRUE(d.causal && d.lse_base_2 && !d.reuse_plan && !d.empty());
  EXPECT_EQ(d.split_tokens, 128);
  EXPECT_EQ(d.q_nope.outer, 4 * 512 * 2);
  EXPECT_EQ(d.q_nope.inner, 512 * 2);
  EXPECT_EQ(d.ckv.outer, 64 * 512 * 2);
  EXPECT_EQ(d.kpe.inner, 64 * 2);
  EXPECT_EQ(d.lse.outer, 4 * 4);
  EXPECT_EQ(d.lse.inner, 4);
  EXPECT_EQ(d.table_stride, 5);
  EXPECT_EQ(d.table_columns, 5);
  EXPECT_EQ(d.kv_indptr, nullptr);
  EXPECT_EQ(d.qo_indptr, nullptr);
}

TEST(MlaDecodeCheck, ADescriptionOfLists) {
  MlaRequest r = good_request();
  make_lists(&r, 9, 100);
  r.lse.reset();
  MlaDecodeDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.max_s_q, 6) << "at most all tokens";
  EXPECT_EQ(d.table_columns, 9);
  EXPECT_EQ(d.table_stride, 0);
  EXPECT_NE(d.kv_indptr, nullptr);
  EXPECT_NE(d.qo_indptr, nullptr);
  EXPECT_EQ(d.lse.data, nullptr);
  r.q_nope->shape[0] = r.q_pe->shape[0] = r.o->shape[0] = 7;  // no multiple of 3
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
}

TEST(MlaDecodeCheck, FusedTensorsAndInterleavedOutputs) {
  for (const int32_t device : {FASTNORM_DEVICE_CPU, FASTNORM_DEVICE_CUDA}) {
    MlaRequest r = good_request();
    r.set_device(device, 0);
    r.kpe->address = r.ckv->address;
    r.kpe->byte_offset = 1024;
    r.ckv->strides = r.kpe->strides = {64 * 576, 576, 1};
    r.q_pe->address = r.q_nope->address;
    r.q_pe->byte_offset = 1024;
    r.q_nope->strides = r.q_pe->strides = {4 * 576, 576, 1};
    // o uses columns of the queries' buffer.
    r.o->address = r.q_nope->address + 576 * 2;
    r.o->strides = r.q_nope->strides = r.q_pe->strides = {4 * 1088, 1088, 1};
    MlaDecodeDesc d;
    Error error;
    EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(d.kpe.data) - reinterpret_cast<uintptr_t>(d.ckv.data),
              1024u);
  }
}

TEST(MlaDecodeCheck, ADescriptionOfBytesAndIndices) {
  MlaRequest r = good_request();
  make_bytes(&r, FASTNORM_MLA_CACHE_BYTES_584, 584);
  r.cache->strides = {40000, 584, 1};
  make_sparse(&r, 30);
  r.indices->strides = {100, 40, 1};
  r.topk_length = mla_tensor(2, {3}, FASTNORM_DTYPE_I32);
  r.attention_sink = mla_tensor(3, {4}, FASTNORM_DTYPE_F32);
  MlaDecodeDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.format, MlaCacheFormat::kFp8Pages);
  EXPECT_TRUE(d.sparse && !d.has_extra && !d.empty());
  EXPECT_EQ(d.batch, 3);
  EXPECT_EQ(d.max_s_q, 2);
  EXPECT_EQ(d.pages, 10);
  EXPECT_EQ(d.page_size, 64);
  EXPECT_EQ(d.ckv.outer, 40000);
  EXPECT_EQ(d.ckv.inner, 584);
  EXPECT_EQ(d.kpe.data, nullptr);
  EXPECT_EQ(d.q_nope.outer, 4 * 448 * 2);
  EXPECT_EQ(d.selection.topk, 30);
  EXPECT_EQ(d.selection.outer, 100);
  EXPECT_EQ(d.selection.inner, 40);
  EXPECT_EQ(d.selection.length_outer, 1);
  EXPECT_EQ(d.selection.length_inner, 0);
  EXPECT_FALSE(d.selection.per_token);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(d.sink), r.attention_sink->address);
  EXPECT_EQ(d.extra.selection.indices, nullptr);

  r.topk_length->shape = {3, 2};
  r.topk_length->strides = {8, 1};
  r.extra_cache = mla_tensor(4, {7, 2, 584}, FASTNORM_DTYPE_U8);
  r.extra_indices = mla_tensor(5, {3, 2, 4}, FASTNORM_DTYPE_I32);
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_TRUE(d.has_extra && d.selection.per_token);
  EXPECT_EQ(d.selection.length_outer, 8);
  EXPECT_EQ(d.selection.length_inner, 1);
  EXPECT_EQ(d.extra.pages, 7);
  EXPECT_EQ(d.extra.page_size, 2);
  EXPECT_EQ(d.extra.ckv.outer, 2 * 584);
  EXPECT_EQ(d.extra.selection.topk, 4);
}

TEST(MlaDecodeCheck, NothingToDo) {
  MlaDecodeDesc d;
  Error error;
  MlaRequest r = mla_request(0, 2, 4, 10, 64, 5);
  for (auto* t : {&r.q_nope, &r.q_pe, &r.kv_len, &r.page_table, &r.o, &r.lse}) (*t)->address = 0;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_TRUE(d.empty());
  r = mla_request(3, 0, 4, 10, 64, 5);
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_TRUE(d.empty());
  r = mla_request(3, 2, 4, 0, 64, 0);  // no cache: all requests are empty
  r.ckv->address = r.kpe->address = r.page_table->address = 0;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_FALSE(d.empty());
  r.page_table->shape = {3, 0};  // no pages: the stride may be any number
  r.page_table->strides = {INT64_MAX / 2, 1};
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.table_stride, 0);
  r = mla_request(3, 0, 4, 10, 64, 5);  // no new tokens, and no indices for any
  make_sparse(&r, 30);
  r.indices->address = 0;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_TRUE(d.empty() && d.sparse);
  r = mla_request(0, 2, 4, 10, 64, 5);  // wrong, though there is nothing to do
  r.args.sm_scale = 0;
  EXPECT_EQ(r.check(&d, error), FASTNORM_ERROR_ARGUMENT);
}

// Lengths and lists on the host.
struct Values {
  std::vector<int32_t> kv_len = {130, 0, 64};
  std::vector<int32_t> table = {0, 9, 2, -7, -7, -7, 5, -7, -7};  // 3 pages a request
  std::vector<int32_t> kv_indptr = {0, 3, 3, 4};
  std::vector<int32_t> lists = {0, 9, 2, 5};
  std::vector<int32_t> qo_indptr = {0, 2, 2, 5};

  fastnorm_status check(bool csr, bool ragged, Error& error) const {
    MlaDecodeDesc d;
    d.tokens = 6;
    d.heads = 1;
    d.batch = 3;
    d.max_s_q = ragged ? 3 : 2;
    d.pages = 10;
    d.page_size = 64;
    d.kv_len = kv_len.data();
    d.page_table = csr ? lists.data() : table.data();
    d.table_stride = csr ? 0 : 3;
    d.table_columns = csr ? 4 : 3;
    if (csr) d.kv_indptr = kv_indptr.data();
    if (ragged) d.qo_indptr = qo_indptr.data();
    return check_mla_decode_values(d, error);
  }
};

TEST(MlaDecodeCheck, ValuesOnTheHost) {
  const struct {
    const char* text;  // nullptr = fine
    bool csr, ragged;
    void (*spoil)(Values&);
  } cases[] = {
      {nullptr, false, false, [](Values&) {}},
      {nullptr, true, true, [](Values&) {}},
      {"kv_len[1] is -1", false, false, [](Values& v) { v.kv_len[1] = -1; }},
      {"kv_len[2] is 193; required: 0 to the tokens of its 3 pages of 64", false, false,
       [](Values& v) { v.kv_len[2] = 193; }},
      {nullptr, false, false, [](Values& v) { v.kv_len[0] = 192; }},
      {"kv_len[2] is 65; required: 0 to the tokens of its 1 pages", true, false,
       [](Values& v) { v.kv_len[2] = 65; }},
      {"kv_len[1] is 1; required: 0 to the tokens of its 0 pages", true, false,
       [](Values& v) { v.kv_len[1] = 1; }},
      {"page 2 of request 0 is 10; required: 0 to 9", false, false,
       [](Values& v) { v.table[2] = 10; }},
      {"page 0 of request 2 is -1", true, false, [](Values& v) { v.lists[3] = -1; }},
      {"kv_indptr[1] is 3 and kv_indptr[2] is 2", true, false,
       [](Values& v) { v.kv_indptr[2] = 2; }},
      {"kv_indptr[3] is 5", true, false, [](Values& v) { v.kv_indptr[3] = 5; }},
      {"kv_indptr[0] is -1", true, false, [](Values& v) { v.kv_indptr[0] = -1; }},
      {"qo_indptr[0] is 1; required: 0", true, true, [](Values& v) { v.qo_indptr[0] = 1; }},
      {"qo_indptr[2] is 1; required: qo_indptr[1], 2, to q_nope's 6", true, true,
       [](Values& v) { v.qo_indptr[2] = 1; }},
      {"qo_indptr[3] is 7", true, true, [](Values& v) { v.qo_indptr[3] = 7; }},
      {"at most max_s_q, 3", true, true, [](Values& v) { v.qo_indptr[3] = 6; }},
  };
  for (const auto& c : cases) {
    Values v;
    c.spoil(v);
    Error error;
    const fastnorm_status status = v.check(c.csr, c.ragged, error);
    if (c.text == nullptr) {
      EXPECT_EQ(status, FASTNORM_OK) << error.text;
    } else {
      EXPECT_EQ(status, FASTNORM_ERROR_ARGUMENT) << c.text;
      EXPECT_NE(std::strstr(error.text, c.text), nullptr) << error.text << " / " << c.text;
    }
  }
}

}  // namespace
}  // namespace fastnorm::test
