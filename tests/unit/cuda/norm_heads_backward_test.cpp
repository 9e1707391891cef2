// norm_heads_backward from the C ABI to its calls of the CUDA runtime, which only records them.
#include "fastnorm/norm_heads_backward.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "fastnorm/fastnorm.h"
#include "unit/cuda/pretend_kernels.h"
#include "unit/cuda/pretend_runtime.h"

namespace fastnorm::test {
namespace {

void* const kStream = reinterpret_cast<void*>(uintptr_t{48});

void* address_of(int number) {
  return reinterpret_cast<void*>((uintptr_t{1} << 40) + (static_cast<uintptr_t>(number) << 36));
}

// 32 query and 4 key heads of 128 of bf16, norm and rope, and 4 value heads; dx of all into one
// packed gradient.
struct HeadsCall {
  explicit HeadsCall(int64_t tokens)
      : query{tokens, 32, 128}, key{tokens, 4, 128}, rows{tokens, 32}, key_rows{tokens, 4} {
    const auto make = [&](fastnorm_tensor* t, void* data, fastnorm_dtype_id dtype, int32_t ndim,
                          const int64_t* shape, const int64_t* steps) {
      t->data = data;
      t->device_type = FASTNORM_DEVICE_CUDA;
      t->ndim = ndim;
      t->dtype = fastnorm_dtype_of(dtype);
      t->shape = shape;
      t->strides = steps;
    };
    const auto packed = [](int number, int64_t head) {
      return static_cast<char*>(address_of(number)) + head * 256;
    };
    constexpr fastnorm_dtype_id kBf16 = FASTNORM_DTYPE_BF16, kF32 = FASTNORM_DTYPE_F32;
    constexpr int64_t kFirst[3] = {0, 32, 36};
    for (int i = 0; i < 3; ++i) {
      const int64_t* const shape = i == 0 ? query : key;
      make(&x[i], packed(1, kFirst[i]), kBf16, 3, shape, strides);
      make(&dx[i], packed(2, kFirst[i]), kBf16, 3, shape, strides);
      make(&dy[i], address_of(3 + i), kBf16, 3, shape, nullptr);
      make(&rstd[i], address_of(6 + i), kF32, 2, i == 0 ? rows : key_rows, nullptr);
      make(&weight[i], address_of(9 + i), kBf16, 1, columns, nullptr);
      make(&dweight[i], address_of(12 + i), kBf16, 1, columns, nullptr);
      fastnorm_norm_heads_backward_part& p = part[i];
      p.struct_size = sizeof p;
      p.dy = &dy[i], p.dx = &dx[i];
      parts[i] = &p;
      if (i == 2) continue;
      p.flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE;
      p.eps = 1e-6f;
      p.x = &x[i], p.weight = &weight[i], p.rstd = &rstd[i], p.dweight = &dweight[i];
    }
    make(&cos, address_of(16), kF32, 2, table, nullptr);
    make(&sin, address_of(17), kF32, 2, table, nullptr);
    args.struct_size = sizeof args;
    args.rope_dim = 128;
    args.cos = &cos, args.sin = &sin;
  }
  HeadsCall(const HeadsCall&) = delete;

  int64_t query[3], key[3], rows[2], key_rows[2];
  int64_t strides[3] = {40 * 128, 128, 1}, columns[1] = {128}, table[2] = {8192, 64};
  fastnorm_tensor x[3] = {}, dy[3] = {}, dx[3] = {}, rstd[3] = {}, weight[3] = {}, dweight[3] = {};
  fastnorm_tensor cos = {}, sin = {};
  fastnorm_norm_heads_backward_part part[3] = {};
  const fastnorm_norm_heads_backward_part* parts[3];
  fastnorm_norm_heads_args args = {};
};

// A launch, and a copy of what its kernel got.
struct Recorded {
  Launch launch;
  std::shared_ptr<cuda::NormHeadsBackwardParams> general;
  std::shared_ptr<cuda::HeldHeadsBackwardParams> held;
  std::shared_ptr<cuda::HeadsFoldParams> fold;
};
thread_local std::vector<Recorded> recorded;

template <class Params>
void copy(const Launch& launch, std::shared_ptr<Params>* to) {
  *to = std::make_shared<Params>(*static_cast<const Params*>(launch.params));
}

void record(const Launch& launch) {
  Recorded& r = recorded.emplace_back(Recorded{launch, {}, {}, {}});
  const auto* const entry = entry_of<cuda::NormHeadsBackwardFamily>(launch.kernel);
  if (entry == nullptr) return;
  const NormHeadsBackwardVariant& v = entry->variant;
  if (v.has_held_params()) return copy(launch, &r.held);
  v.form == HeadsBackwardForm::kFold ? copy(launch, &r.fold) : copy(launch, &r.general);
}

class CudaNormHeadsBackward : public testing::Test {
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

  fastnorm_info query(const HeadsCall& call, int32_t count = 3) {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    EXPECT_EQ(fastnorm_norm_heads_backward_query(context, &call.args, call.parts, count, &info),
              FASTNORM_OK)
        << fastnorm_last_error();
    return info;
  }
  fastnorm_status run(const HeadsCall& call, int32_t count = 3) {
    recorded.clear();
    const size_t bytes = query(call, count).workspace_bytes;
    return fastnorm_norm_heads_backward(context, &call.args, call.parts, count,
                                        bytes != 0 ? address_of(20) : nullptr, bytes, kStream);
  }

  fastnorm_context* context = nullptr;
};

TEST_F(CudaNormHeadsBackward, HeldForm) {
  const HeadsCall call(1000);
  const fastnorm_info info = query(call);
  EXPECT_STREQ(info.kernel, "norm_heads_backward bf16 held rms 16x1x64");
  EXPECT_EQ(info.launches, 2) << "all parts in one launch, and one fold";
  EXPECT_EQ(info.threads_per_row, 16);
  EXPECT_EQ(info.rows_per_block, 64);
  // 128 blocks of sums of 128 floats for the query; the key's 4000 rows have 63, of 64 lanes.
  EXPECT_EQ(info.workspace_bytes, (128u + 63) * 512);
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 2u);
  const Launch& rows = recorded[0].launch;
  EXPECT_EQ(rows.stream, kStream);
  EXPECT_EQ(rows.context, primary_context(0));
  EXPECT_EQ(rows.block.x, 1024u);
  EXPECT_EQ(rows.grid.x, 128u + 63 + 63);
  EXPECT_EQ(rows.early, 1);
  ASSERT_NE(recorded[0].held, nullptr);
  const cuda::HeldHeadsBackwardParams& p = *recorded[0].held;
  EXPECT_EQ(p.count, 3);
  EXPECT_TRUE(p.triggers);
  EXPECT_EQ(p.part[0].dx.token_stride, 40 * 256) << "into the packed gradient";
  EXPECT_EQ(p.part[0].dx.head_stride, 256);
  EXPECT_EQ(p.part[0].dy.token_stride, 32 * 256);
  EXPECT_EQ(p.part[0].order.groups, 1u);
  EXPECT_EQ(p.part[0].order.shared_rows, 32000u);
  EXPECT_EQ(p.part[0].order.lanes, 64u);
  EXPECT_EQ(p.part[0].order.blocks, 128u);
  EXPECT_EQ(p.part[0].by_heads.value, 32u);
  EXPECT_EQ(p.part[1].order.first_block, 128u);
  EXPECT_EQ(reinterpret_cast<char*>(p.part[1].order.partial[0]),
            static_cast<char*>(address_of(20)) + 128 * 512);
  EXPECT_EQ(p.part[2].x.data, nullptr) << "a value head has dy alone";
  EXPECT_EQ(p.part[2].order.partial[0], nullptr);
  EXPECT_EQ(p.shared.half, 64);

  const Launch& fold = recorded[1].launch;
  EXPECT_EQ(fold.grid.x, 4u + 4) << "blocks of 32 columns";
  EXPECT_EQ(fold.early, 1);
  ASSERT_NE(recorded[1].fold, nullptr);
  EXPECT_TRUE(recorded[1].fold->triggers);
  EXPECT_EQ(recorded[1].fold->count, 2);
  EXPECT_EQ(recorded[1].fold->sum[1].out.data, address_of(13));
  EXPECT_EQ(recorded[1].fold->sum[1].blocks, 63u);
  EXPECT_EQ(notes.context, nullptr) << "current is what was";
}

// Frozen weights: dx alone needs no workspace and no fold.
TEST_F(CudaNormHeadsBackward, DxAlone) {
  HeadsCall call(1000);
  for (fastnorm_norm_heads_backward_part& p : call.part) p.dweight = nullptr;
  EXPECT_EQ(query(call).workspace_bytes, 0u);
  EXPECT_EQ(query(call).launches, 1);
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  EXPECT_TRUE(recorded[0].held->triggers);
  EXPECT_EQ(recorded[0].launch.early, 1);
}

// Without dependent launch before and behind the call, its fold still starts early.
TEST_F(CudaNormHeadsBackward, NoDependentLaunchAroundTheCall) {
  HeadsCall call(1000);
  call.args.flags = FASTNORM_NORM_HEADS_NO_PDL;
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 2u);
  EXPECT_EQ(recorded[0].launch.early, -1);
  EXPECT_TRUE(recorded[0].held->triggers);
  EXPECT_EQ(recorded[1].launch.early, 1);
  EXPECT_FALSE(recorded[1].fold->triggers);
}

// A statistic of all heads has a launch of its own before the rows.
TEST_F(CudaNormHeadsBackward, AcrossHeads) {
  HeadsCall call(1000);
  for (int i = 0; i < 2; ++i) {
    call.part[i].flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
    call.part[i].rstd = nullptr;
  }
  EXPECT_EQ(query(call).workspace_bytes, (128u + 63) * 512 + 2 * 16128)
      << "and four floats for each token, in steps of 256 bytes";
  EXPECT_EQ(query(call).launches, 3);
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 3u);
  ASSERT_NE(recorded[0].held, nullptr);
  EXPECT_EQ(recorded[0].held->count, 2);
  EXPECT_EQ(recorded[0].held->part[0].inv_n, 1.0f / 4096);
  EXPECT_EQ(recorded[0].held->part[1].order.first_block, 1000u);
  EXPECT_EQ(recorded[0].launch.grid.x, 2000u) << "a block for each token";
  EXPECT_EQ(recorded[0].launch.block.x, 256u);
  ASSERT_NE(recorded[1].held, nullptr);
  EXPECT_EQ(recorded[1].launch.early, 1);
  EXPECT_EQ(recorded[1].held->part[0].token_values, recorded[0].held->part[0].token_values);
}

// A token's heads that begin between vectors have their values from the general form.
TEST_F(CudaNormHeadsBackward, AcrossHeadsOfOtherTokens) {
  HeadsCall call(1000);
  for (int i = 0; i < 2; ++i) {
    call.part[i].flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
    call.part[i].rstd = nullptr;
  }
  call.x[1].byte_offset = 2;
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 3u);
  ASSERT_NE(recorded[0].general, nullptr);
  EXPECT_EQ(recorded[0].general->count, 2);
  EXPECT_TRUE(recorded[0].general->part[0].tokens);
  EXPECT_EQ(recorded[0].general->part[0].forward.norm.inv_n, 1.0f / 4096);
  EXPECT_EQ(recorded[0].launch.grid.x, 2000u) << "a block for each token";
}

// What registers cannot hold: here a dy of f32, whose rows the general form turns in shared memory.
TEST_F(CudaNormHeadsBackward, GeneralForm) {
  HeadsCall call(1000);
  call.dy[1].dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  EXPECT_STREQ(query(call).kernel, "norm_heads_backward bf16 general");
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 2u);
  ASSERT_NE(recorded[0].general, nullptr);
  EXPECT_EQ(recorded[0].launch.shared_bytes, 32u * 128 * 4) << "the sums of 32 lanes";
  EXPECT_EQ(recorded[0].general->part[1].dy_dtype, Dtype::kF32);
  EXPECT_EQ(recorded[0].general->part[0].forward.bits & cuda::kHeadsInverse,
            uint32_t{cuda::kHeadsInverse})
      << "dy turns back";
}

// dbias with a row for each head beside a shared dweight: dbias first, as dx may replace dy.
TEST_F(CudaNormHeadsBackward, OtherGroups) {
  HeadsCall call(1000);
  fastnorm_tensor dbias = call.dweight[2];
  const int64_t shape[2] = {32, 128};
  dbias.ndim = 2, dbias.shape = shape;
  call.part[0].dbias = &dbias;
  call.part[0].dx = call.part[0].dy;
  ASSERT_EQ(run(call, 1), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 3u);
  ASSERT_NE(recorded[0].general, nullptr);
  EXPECT_EQ(recorded[0].general->part[0].order.groups, 32u);
  EXPECT_EQ(recorded[0].general->part[0].dx.data, nullptr);
  EXPECT_EQ(recorded[1].launch.grid.x, 128u);
  EXPECT_EQ(recorded[2].fold->count, 2);
  EXPECT_EQ(recorded[2].fold->sum[0].groups, 32u);
  EXPECT_EQ(recorded[2].fold->sum[0].out.stride, 256);
}

TEST_F(CudaNormHeadsBackward, PrepareLoadsTheKernels) {
  const HeadsCall call(16);
  ASSERT_EQ(fastnorm_norm_heads_backward_prepare(context, &call.args, call.parts, 3), FASTNORM_OK);
  ASSERT_EQ(notes.loaded.size(), 2u);
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 2u);
  EXPECT_EQ(recorded[0].launch.kernel, notes.loaded[0]);
  EXPECT_EQ(recorded[1].launch.kernel, notes.loaded[1]);
}

// One block has all rows of a part: it stores dweight, and nothing is left to fold.
TEST_F(CudaNormHeadsBackward, OneBlockStoresItsSums) {
  const HeadsCall call(1);
  const fastnorm_info info = query(call);
  EXPECT_EQ(info.launches, 1);
  EXPECT_EQ(info.workspace_bytes, 0u);
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  ASSERT_NE(recorded[0].held, nullptr);
  const cuda::HeadsRowOrder& order = recorded[0].held->part[0].order;
  EXPECT_EQ(order.blocks, 1u);
  EXPECT_EQ(order.partial[0], nullptr);
  EXPECT_EQ(order.out[0].data, call.part[0].dweight->data);
  EXPECT_EQ(order.out[0].dtype, Dtype::kBF16);
  EXPECT_FALSE(order.out[0].accumulates);
  EXPECT_EQ(order.out[1].data, nullptr) << "no dbias is wanted";
}

// Without tokens dweight becomes zero.
TEST_F(CudaNormHeadsBackward, NoTokens) {
  const HeadsCall call(0);
  EXPECT_EQ(query(call).launches, 1);
  EXPECT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  ASSERT_NE(recorded[0].fold, nullptr);
  EXPECT_EQ(recorded[0].fold->sum[0].blocks, 0u);
}

TEST_F(CudaNormHeadsBackward, Failures) {
  const HeadsCall call(16);
  machine.failures = {{"cudaLaunchKernelExC", cudaErrorInvalidValue}};
  EXPECT_EQ(run(call), FASTNORM_ERROR_DEVICE);
  EXPECT_EQ(notes.last_error, cudaSuccess);
  EXPECT_EQ(notes.context, nullptr);
}

}  // namespace
}  // namespace fastnorm::test
