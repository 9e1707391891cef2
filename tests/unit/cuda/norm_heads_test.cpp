// norm_heads from the C ABI to its calls of the CUDA runtime, which only records them.
#include "fastnorm/norm_heads.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fastnorm/fastnorm.h"
#include "unit/cuda/pretend_kernels.h"
#include "unit/cuda/pretend_runtime.h"

namespace fastnorm::test {
namespace {

void* const kStream = reinterpret_cast<void*>(uintptr_t{48});

// 32 query and 4 key heads of 128 in a fused bf16 buffer. Norm and rope are in place, and keys go
// to a cache.
struct HeadsCall {
  explicit HeadsCall(int64_t tokens)
      : query{tokens, 32, 128}, key{tokens, 4, 128}, strides{40 * 128, 128, 1}, list{tokens} {
    const auto at = [](int number) {
      return reinterpret_cast<void*>((uintptr_t{1} << 40) + (static_cast<uintptr_t>(number) << 36));
    };
    const auto make = [&](fastnorm_tensor* t, void* data, fastnorm_dtype_id dtype, int32_t ndim,
                          const int64_t* shape, const int64_t* steps) {
      t->data = data;
      t->device_type = FASTNORM_DEVICE_CUDA;
      t->ndim = ndim;
      t->dtype = fastnorm_dtype_of(dtype);
      t->shape = shape;
      t->strides = steps;
    };
    make(&q, at(1), FASTNORM_DTYPE_BF16, 3, query, strides);
    make(&k, static_cast<char*>(at(1)) + 32 * 256, FASTNORM_DTYPE_BF16, 3, key, strides);
    make(&weight, at(2), FASTNORM_DTYPE_BF16, 1, columns, nullptr);
    make(&cache, at(3), FASTNORM_DTYPE_BF16, 4, pages, nullptr);
    make(&cos, at(4), FASTNORM_DTYPE_F32, 2, table, nullptr);
    make(&sin, at(5), FASTNORM_DTYPE_F32, 2, table, nullptr);
    make(&positions, at(6), FASTNORM_DTYPE_I64, 1, list, nullptr);
    make(&slots, at(7), FASTNORM_DTYPE_I64, 1, list, nullptr);
    for (fastnorm_norm_heads_part& p : part) {
      p.struct_size = sizeof p;
      p.flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE;
      p.eps = 1e-6f;
      p.weight = &weight;
    }
    part[0].x = part[0].y = &q;
    part[1].x = part[1].y = &k;
    part[1].cache = &cache;
    args.struct_size = sizeof args;
    args.rope_dim = 128;
    args.cos = &cos, args.sin = &sin, args.positions = &positions, args.slots = &slots;
  }
  HeadsCall(const HeadsCall&) = delete;

  int64_t query[3], key[3], strides[3], list[1];
  int64_t columns[1] = {128}, pages[4] = {1000, 24, 4, 128}, table[2] = {4096, 64};
  fastnorm_tensor q = {}, k = {}, weight = {}, cache = {}, cos = {}, sin = {}, positions = {},
                  slots = {};
  fastnorm_norm_heads_part part[2] = {};
  const fastnorm_norm_heads_part* parts[2] = {&part[0], &part[1]};
  fastnorm_norm_heads_args args = {};
};

struct Recorded {
  Launch launch;
  bool held;
  cuda::NormHeadsParams general;
  cuda::HeldHeadsParams of_held;
  cuda::IndexerParams of_indexer;
};
thread_local std::vector<Recorded> recorded;

void record(const Launch& launch) {
  const NormHeadsEntry* const entry = entry_of<cuda::NormHeadsFamily>(launch.kernel);
  ASSERT_NE(entry, nullptr);
  const bool indexer = entry->variant.is_indexer();
  Recorded r = {launch, !indexer && entry->variant.is_held(), {}, {}, {}};
  if (indexer) {
    r.of_indexer = *static_cast<const cuda::IndexerParams*>(launch.params);
  } else if (r.held) {
    r.of_held = *static_cast<const cuda::HeldHeadsParams*>(launch.params);
  } else {
    r.general = *static_cast<const cuda::NormHeadsParams*>(launch.params);
  }
  recorded.push_back(r);
}

class CudaNormHeads : public testing::Test {
 protected:
  void SetUp() override {
    machine = {};
    notes = {};
    notes.on_launch = record;
    recorded.clear();
    ASSERT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CUDA, 0}, nullptr, &context), FASTNORM_OK)
        << fastnorm_last_error();
    notes.loaded.clear();
  }
  void TearDown() override { fastnorm_context_destroy(context); }

  fastnorm_info query(const HeadsCall& call) {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    EXPECT_EQ(fastnorm_norm_heads_query(context, &call.args, call.parts, 2, &info), FASTNORM_OK)
        << fastnorm_last_error();
    return info;
  }
  fastnorm_status run(const HeadsCall& call) {
    recorded.clear();
    return fastnorm_norm_heads(context, &call.args, call.parts, 2, nullptr, 0, kStream);
  }

  fastnorm_context* context = nullptr;
};

// A statistic of all heads, and a rope that ends inside a vector.
TEST_F(CudaNormHeads, GeneralForm) {
  HeadsCall call(1000);
  for (fastnorm_norm_heads_part& p : call.part) p.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
  call.args.rope_dim = 120;
  call.table[1] = 60;
  const fastnorm_info info = query(call);
  EXPECT_STREQ(info.kernel, "norm_heads bf16 general");
  EXPECT_EQ(info.workspace_bytes, 0u);
  EXPECT_EQ(info.launches, 1);
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  const Recorded& r = recorded[0];
  EXPECT_EQ(r.launch.stream, kStream);
  EXPECT_EQ(r.launch.context, primary_context(0));
  EXPECT_EQ(r.launch.grid.x, 2000u) << "a block for each token of each part";
  EXPECT_EQ(r.launch.block.x, 256u);
  ASSERT_FALSE(r.held);
  EXPECT_EQ(r.general.count, 2);
  EXPECT_EQ(r.general.blocks, 2000u);
  EXPECT_EQ(r.general.part[1].first_block, 1000u);
  EXPECT_EQ(r.general.part[0].y.token_stride, 40 * 256);
  EXPECT_EQ(r.general.part[0].y.head_stride, 256);
  EXPECT_EQ(r.general.part[1].page_size, 24);
  EXPECT_EQ(r.general.part[1].cache.page_stride, 24 * 4 * 256);
  EXPECT_EQ(r.general.part[0].norm.inv_n, 1.0f / 4096);
  EXPECT_EQ(r.general.shared.half, 60);
  EXPECT_EQ(notes.context, nullptr) << "current is what was";
}

// In the general form a warp has a head of up to 1024 columns, and a block a longer one.
TEST_F(CudaNormHeads, GeneralFormOfLongHeads) {
  for (const int64_t n : {1024, 1025}) {
    HeadsCall call(5);
    call.query[1] = call.key[1] = call.pages[2] = 2;
    call.query[2] = call.key[2] = call.pages[3] = call.columns[0] = call.strides[1] = n;
    call.strides[0] = 4 * n;
    call.k.data = static_cast<char*>(call.q.data) + 2 * n * 2;
    call.args.rope_dim = 120;
    call.table[1] = 60;
    ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
    ASSERT_EQ(recorded.size(), 1u);
    ASSERT_FALSE(recorded[0].held);
    EXPECT_EQ((recorded[0].general.part[0].bits & cuda::kHeadsByBlock) != 0, n > 1024);
  }
}

TEST_F(CudaNormHeads, HeldForm) {
  const HeadsCall call(1000);
  EXPECT_STREQ(query(call).kernel, "norm_heads bf16 rotate-half 8x2");
  EXPECT_EQ(query(call).threads_per_row, 8);
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  const Recorded& r = recorded[0];
  ASSERT_TRUE(r.held);
  EXPECT_EQ(r.launch.block.x, 128u);
  EXPECT_EQ(r.launch.grid.x, 1000u + 125) << "16 groups a block, two heads each";
  EXPECT_EQ(r.of_held.count, 2);
  EXPECT_EQ(r.of_held.part[0].groups, 16u);
  EXPECT_EQ(r.of_held.part[0].steps, 2u);
  EXPECT_EQ(r.of_held.part[1].first_block, 1000u);
  EXPECT_EQ(r.of_held.part[1].by_page.value, 24u);
  EXPECT_EQ(r.of_held.part[1].cache.row_stride, 4 * 256);
  EXPECT_EQ(r.of_held.part[0].x.token_stride, 40 * 256);
  EXPECT_EQ(r.of_held.part[0].vectors, 16);
  EXPECT_EQ(r.of_held.part[0].inv_n, 1.0f / 128);
  EXPECT_TRUE(r.of_held.shared.table_aligned && r.of_held.shared.table_f32);
}

// A statistic of all heads: a block has a token of the query, or eight of the key.
TEST_F(CudaNormHeads, TokensForm) {
  HeadsCall call(1000);
  for (fastnorm_norm_heads_part& p : call.part) p.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
  EXPECT_STREQ(query(call).kernel, "norm_heads bf16 tokens 256x2");
  EXPECT_EQ(query(call).threads_per_row, 256);
  EXPECT_EQ(query(call).launches, 1);
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  const Recorded& r = recorded[0];
  ASSERT_TRUE(r.held);
  EXPECT_EQ(r.launch.block.x, 256u);
  EXPECT_EQ(r.launch.grid.x, 1000u + 125);
  const cuda::HeldPartParams &q = r.of_held.part[0], &k = r.of_held.part[1];
  EXPECT_EQ(k.first_block, 1000u);
  EXPECT_EQ(q.groups, 1u);
  EXPECT_EQ(q.thread_shift, 8);
  EXPECT_EQ(q.divisor.value, 16u) << "vectors of a head";
  EXPECT_EQ(q.inv_n, 1.0f / 4096);
  EXPECT_EQ(k.groups, 8u);
  EXPECT_EQ(k.thread_shift, 5);
  EXPECT_EQ(k.inv_n, 1.0f / 512);
}

// An indexer's query heads with codes and head weights, and keys in rows of 132 bytes.
TEST_F(CudaNormHeads, IndexerForm) {
  HeadsCall call(1000);
  call.args.rope_dim = 64;
  call.table[1] = 32;
  const int64_t heads[] = {1000, 32}, scales[] = {1000, 24, 4, 1},
                by_row[] = {24 * 132, 132, 33, 1}, rows[] = {24 * 528, 528, 132, 1};
  fastnorm_tensor codes = call.q, scale = call.q, weights = call.q, out = call.q,
                  key_scale = call.cache;
  const auto place = [](fastnorm_tensor* t, int number, fastnorm_dtype_id dtype, int32_t ndim,
                        const int64_t* shape, const int64_t* strides) {
    t->data = reinterpret_cast<void*>(static_cast<uintptr_t>(number) << 45);
    t->dtype = fastnorm_dtype_of(dtype);
    t->ndim = ndim, t->shape = shape, t->strides = strides;
  };
  place(&codes, 1, FASTNORM_DTYPE_F8_E4M3FN, 3, call.query, nullptr);
  place(&scale, 2, FASTNORM_DTYPE_F32, 2, heads, nullptr);
  place(&weights, 3, FASTNORM_DTYPE_F16, 2, heads, nullptr);
  place(&out, 4, FASTNORM_DTYPE_F32, 2, heads, nullptr);
  place(&call.cache, 5, FASTNORM_DTYPE_F8_E4M3FN, 4, call.pages, rows);
  place(&key_scale, 5, FASTNORM_DTYPE_F32, 4, scales, by_row);
  key_scale.byte_offset = 128;
  fastnorm_quant quant = {}, cache_quant = {};
  quant.struct_size = cache_quant.struct_size = sizeof quant;
  quant.scheme = FASTNORM_QUANT_PER_ROW;
  cache_quant.scheme = FASTNORM_QUANT_PER_BLOCK;
  cache_quant.block_size = 128;
  quant.rotation = cache_quant.rotation = 128;
  quant.quantized = &codes, quant.scale = &scale, cache_quant.scale = &key_scale;
  fastnorm_norm_heads_part &q = call.part[0], &k = call.part[1];
  q.flags = FASTNORM_NORM_HEADS_ROPE;
  q.eps = 0;
  q.weight = q.y = k.y = nullptr;
  q.quant = &quant, k.cache_quant = &cache_quant;
  q.head_weights = &weights, q.head_weights_out = &out;
  EXPECT_STREQ(query(call).kernel, "norm_heads bf16 indexer 4x4");
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  const cuda::IndexerParams& p = recorded[0].of_indexer;
  EXPECT_EQ(recorded[0].launch.block.x, 128u);
  EXPECT_EQ(p.part[0].groups, 16u) << "two heads each";
  EXPECT_EQ(p.part[1].groups, 4u) << "a group for each key";
  EXPECT_EQ(p.part[1].first_block, 500u);
  EXPECT_EQ(p.part[0].cache.page_stride, 32 * 128) << "codes of y, by token";
  EXPECT_EQ(p.part[0].scales.head_stride, 4);
  EXPECT_TRUE((p.part[0].bits & cuda::kHeadsCodesOfY) != 0);
  EXPECT_TRUE((p.part[0].bits & cuda::kHeadsCodesWide) != 0);
  EXPECT_FALSE((p.part[1].bits & cuda::kHeadsCodesWide) != 0) << "rows of 132 bytes";
  EXPECT_EQ(p.more[0].weights.factor, 1.0f);
  EXPECT_EQ(p.more[0].weights.type, cuda::OperandType::kOther16);
  EXPECT_EQ(p.more[1].weights.out.data, nullptr);
  EXPECT_EQ(p.more[0].rotation.block, 128);
}

// Keys whose last 64 columns are stored beside the codes of the others, in rows of 576 bytes.
TEST_F(CudaNormHeads, TailOfACache) {
  HeadsCall call(1000);
  const int64_t coded[] = {1000, 24, 4, 64}, scales[] = {1000, 24, 4, 1},
                codes[] = {24 * 768, 768, 192, 1}, elements[] = {24 * 384, 384, 96, 1},
                of_scales[] = {24 * 4, 4, 1, 1};
  fastnorm_tensor tail = call.cache, scale = call.cache;
  call.cache.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F8_E4M3FN);
  scale.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F8_E8M0FNU);
  call.cache.shape = tail.shape = coded, scale.shape = scales;
  call.cache.strides = codes, tail.strides = elements, scale.strides = of_scales;
  tail.byte_offset = 64;
  scale.data = reinterpret_cast<void*>(uintptr_t{1} << 45);
  fastnorm_quant quant = {};
  quant.struct_size = sizeof quant;
  quant.scheme = FASTNORM_QUANT_PER_BLOCK;
  quant.block_size = 64;
  quant.scale_pow2 = 1;
  quant.scale = &scale;
  call.part[1].cache_quant = &quant;
  call.part[1].cache_tail = &tail;
  EXPECT_STREQ(query(call).kernel, "norm_heads bf16 general");
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  const cuda::HeadsPartParams& p = recorded[0].general.part[1];
  EXPECT_EQ(p.tail_columns, 64);
  EXPECT_EQ(p.cache_tail.data, p.cache.data + 64);
  EXPECT_EQ(p.cache_tail.row_stride, 768);
  EXPECT_EQ(p.cache_tail.head_stride, 192);
  EXPECT_EQ(p.cache_tail.page_stride, 24 * 768);
  EXPECT_EQ(recorded[0].general.part[0].tail_columns, 0);
  EXPECT_EQ(recorded[0].general.part[0].cache_tail.data, nullptr);
}

TEST_F(CudaNormHeads, PrepareLoadsTheKernel) {
  const HeadsCall call(16);
  ASSERT_EQ(fastnorm_norm_heads_prepare(context, &call.args, call.parts, 2), FASTNORM_OK);
  ASSERT_EQ(notes.loaded.size(), 1u);
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  EXPECT_EQ(recorded[0].launch.kernel, notes.loaded[0]);
}

TEST_F(CudaNormHeads, StartsEarlyUnlessItIsTurnedOff) {
  for (const bool general : {false, true}) {
    HeadsCall call(16);
    if (general) call.args.rope_dim = 120, call.table[1] = 60;
    const auto triggers = [&] {
      return recorded[0].held ? recorded[0].of_held.triggers : recorded[0].general.triggers;
    };
    ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
    EXPECT_EQ(recorded[0].launch.early, 1);
    EXPECT_TRUE(triggers());
    call.args.flags = FASTNORM_NORM_HEADS_NO_PDL;
    ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
    EXPECT_EQ(recorded[0].launch.early, -1);
    EXPECT_FALSE(triggers());
  }
}

TEST_F(CudaNormHeads, NothingToDo) {
  const HeadsCall call(0);
  EXPECT_EQ(query(call).launches, 0);
  EXPECT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  EXPECT_TRUE(recorded.empty());
}

TEST_F(CudaNormHeads, Failures) {
  const HeadsCall call(16);
  machine.failures = {{"cudaLaunchKernelExC", cudaErrorInvalidValue}};
  EXPECT_EQ(run(call), FASTNORM_ERROR_DEVICE);
  EXPECT_EQ(notes.last_error, cudaSuccess);
  EXPECT_EQ(notes.context, nullptr);
}

}  // namespace
}  // namespace fastnorm::test
