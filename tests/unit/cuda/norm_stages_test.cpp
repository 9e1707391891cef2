// Norm calls with stages from the C ABI down to what they tell the CUDA runtime. The runtime only
// takes notes.
#include <gtest/gtest.h>

#include <vector>

#include "fastnorm/fastnorm.h"
#include "unit/cuda/pretend_kernels.h"
#include "unit/cuda/pretend_runtime.h"

namespace fastnorm::test {
namespace {

void* const kStream = reinterpret_cast<void*>(uintptr_t{48});

// 8 groups of 96 columns of bf16: a branch norm and a gate after the norm, all stages' tensors.
struct StagesCall {
  explicit StagesCall(int64_t rows) : shape{rows, 768}, statistic{rows, 8} {
    const auto make = [&](fastnorm_tensor* t, int number, fastnorm_dtype_id dtype, int32_t ndim,
                          const int64_t* extents) {
      t->data =
          reinterpret_cast<void*>((uintptr_t{1} << 40) + (static_cast<uintptr_t>(number) << 36));
      t->device_type = FASTNORM_DEVICE_CUDA;
      t->ndim = ndim;
      t->dtype = fastnorm_dtype_of(dtype);
      t->shape = extents;
    };
    make(&x, 1, FASTNORM_DTYPE_BF16, 2, shape), make(&y, 2, FASTNORM_DTYPE_BF16, 2, shape);
    make(&gate, 3, FASTNORM_DTYPE_F32, 2, shape);
    make(&weight, 4, FASTNORM_DTYPE_BF16, 1, group);
    make(&branch_weight, 5, FASTNORM_DTYPE_F32, 1, shape + 1);
    make(&rstd, 6, FASTNORM_DTYPE_F32, 2, statistic);
    make(&sum_scale, 7, FASTNORM_DTYPE_F32, 1, one);
    args.struct_size = sizeof args;
    args.eps = 1e-5f;
    args.x = &x, args.y = &y, args.gate = &gate, args.weight = &weight, args.rstd = &rstd;
    args.gate_act = FASTNORM_ACTIVATION_SILU;
    args.group_size = 96;
    args.branch_norm = 1;
    args.branch_eps = 1e-3f;
    args.branch_weight = &branch_weight;
    args.branch_weight_offset = 1;
    args.flags |= FASTNORM_NORM_ALPHA;
    args.alpha = 0.5f;
    args.sum_scale = &sum_scale;
  }
  StagesCall(const StagesCall&) = delete;

  int64_t shape[2], statistic[2], group[1] = {96}, one[1] = {1};
  fastnorm_tensor x = {}, y = {}, gate = {}, weight = {}, branch_weight = {}, rstd = {},
                  sum_scale = {};
  fastnorm_norm_args args = {};
};

struct Recorded {
  Launch launch;
  bool is_held;
  cuda::NormStagesParams params;
  cuda::HeldStagesParams held;
  cuda::NormCallParams rotated;
};
thread_local std::vector<Recorded> recorded;

void record(const Launch& launch) {
  const StagesEntry* const entry = entry_of<cuda::NormStagesFamily>(launch.kernel);
  ASSERT_NE(entry, nullptr);
  const bool rotated = entry->variant.is_rotated();
  Recorded r = {launch, !rotated && entry->variant.is_held(), {}, {}, {}};
  if (rotated) {
    r.rotated = *static_cast<const cuda::NormCallParams*>(launch.params);
  } else if (r.is_held) {
    r.held = *static_cast<const cuda::HeldStagesParams*>(launch.params);
  } else {
    r.params = *static_cast<const cuda::NormStagesParams*>(launch.params);
  }
  recorded.push_back(r);
}

class CudaNormStages : public testing::Test {
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

  fastnorm_info query(const StagesCall& call) {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    EXPECT_EQ(fastnorm_norm_query(context, &call.args, &info), FASTNORM_OK)
        << fastnorm_last_error();
    return info;
  }
  fastnorm_status run(const StagesCall& call) {
    recorded.clear();
    return fastnorm_norm(context, &call.args, nullptr, 0, kStream);
  }

  fastnorm_context* context = nullptr;
};

TEST_F(CudaNormStages, GeneralKernelGetsTheCall) {
  const StagesCall call(1001);
  const fastnorm_info info = query(call);
  EXPECT_STREQ(info.kernel, "bf16 stages 32xstream");
  EXPECT_EQ(info.blocks, 251u);
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  ASSERT_FALSE(recorded[0].is_held);
  const Launch& launch = recorded[0].launch;
  const cuda::NormStagesParams& p = recorded[0].params;
  EXPECT_EQ(launch.stream, kStream);
  EXPECT_EQ(launch.context, primary_context(0));
  EXPECT_EQ(launch.grid.x, 251u);
  EXPECT_EQ(launch.block.x, 128u);
  EXPECT_EQ(launch.early, 1);
  EXPECT_EQ(p.bits, cuda::kStagesGate | cuda::kStagesBranch | cuda::kStagesScaled |
                        cuda::kStagesWeightShared | cuda::kStagesStoresRows);
  EXPECT_EQ(p.gate_act, cuda::StageFunction::kSilu);
  EXPECT_EQ(p.activation, cuda::StageFunction::kIdentity);
  EXPECT_EQ(p.gate_type, cuda::OperandType::kF32);
  EXPECT_EQ(p.gate.row.stride, 768 * 4);
  EXPECT_EQ(p.columns, 768u);
  EXPECT_EQ(p.group, 96u);
  EXPECT_EQ(p.groups, 8u);
  EXPECT_EQ(p.alpha, 0.5f);
  EXPECT_EQ(p.sum_scale, call.sum_scale.data);
  EXPECT_EQ(p.norm.inv_n, 1.0f / 96);
  EXPECT_EQ(p.norm.rstd.stride, 32);
  EXPECT_EQ(p.branch.inv_n, 1.0f / 768);
  EXPECT_EQ(p.branch.eps, 1e-3f);
  EXPECT_EQ(p.branch.weight_offset, 1.0f);
  EXPECT_EQ(static_cast<const void*>(p.branch.weight), call.branch_weight.data);
  EXPECT_EQ(notes.context, nullptr) << "current is what was";
}

// Rows of bf16 with codes alone, of which blocks of 128 columns are rotated.
TEST_F(CudaNormStages, RotatedRowsStayInRegisters) {
  StagesCall call(1001);
  fastnorm_tensor weight = call.branch_weight;
  weight.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_BF16);
  call.args = {};
  call.args.struct_size = sizeof call.args;
  call.args.eps = 1e-6f;
  call.args.x = &call.x;
  call.args.weight = &weight;
  fastnorm_tensor codes = call.x, scale = call.sum_scale, signs = call.branch_weight;
  int64_t rows[1] = {1001};
  codes.data = reinterpret_cast<void*>(uintptr_t{1} << 46);
  codes.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F8_E4M3FN);
  scale.data = reinterpret_cast<void*>(uintptr_t{1} << 47);
  scale.shape = rows;
  signs.data = reinterpret_cast<void*>(uintptr_t{3} << 46);
  fastnorm_quant quant = {};
  quant.struct_size = sizeof quant;
  quant.scheme = FASTNORM_QUANT_PER_ROW;
  quant.quantized = &codes;
  quant.scale = &scale;
  quant.rotation = 128;
  quant.rotation_signs = &signs;
  call.args.quant = &quant;
  EXPECT_STREQ(query(call).kernel, "bf16 rotated-lean 32x4");
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  const cuda::NormCallParams& p = recorded[0].rotated;
  EXPECT_EQ(recorded[0].launch.grid.x, 501u);
  EXPECT_EQ(recorded[0].launch.block.x, 64u);
  EXPECT_EQ(p.rotation.block, 128);
  EXPECT_EQ(p.rotation.factor, 0x1.6a09e6p-4f);
  EXPECT_EQ(p.rotation.signs, signs.data);
  EXPECT_EQ(p.rotation.signs_repeat, ~uint64_t{0}) << "a sign for each column";
  EXPECT_FALSE(p.rotation.of_y);
  EXPECT_EQ(p.vectors, 96);
  call.args.y = &call.y;
  quant.y_rotated = 1;
  EXPECT_STREQ(query(call).kernel, "bf16 rotated 32x4");
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  EXPECT_TRUE(recorded[0].rotated.rotation.of_y);
  quant.rotation_signs = nullptr;
  call.args.residual = &call.y;
  call.args.y = nullptr;
  quant.y_rotated = 0;
  EXPECT_STREQ(query(call).kernel, "bf16 rotated-lean-sum 32x4");
  quant.rotation_signs = &signs;
  signs.data = reinterpret_cast<void*>((uintptr_t{3} << 46) + 4);
  EXPECT_STREQ(query(call).kernel, "bf16 stages 32xstream") << "signs at no multiple of 16 bytes";
}

TEST_F(CudaNormStages, LongRowsHaveABlock) {
  StagesCall call(3);
  call.shape[1] = 1536;
  call.args.group_size = 192;
  call.group[0] = 192;
  EXPECT_STREQ(query(call).kernel, "bf16 stages 256xstream");
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  EXPECT_EQ(recorded[0].launch.grid.x, 3u);
  EXPECT_EQ(recorded[0].launch.block.x, 256u);
}

TEST_F(CudaNormStages, StartsEarlyUnlessItIsTurnedOff) {
  StagesCall call(8);
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  EXPECT_EQ(recorded[0].launch.early, 1);
  EXPECT_NE(recorded[0].params.norm.bits & cuda::kWaitFirst, 0u);
  EXPECT_NE(recorded[0].params.norm.bits & cuda::kTrigger, 0u);
  call.args.flags |= FASTNORM_NORM_NO_PDL;
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  EXPECT_EQ(recorded[0].launch.early, -1);
  EXPECT_EQ(recorded[0].params.norm.bits & (cuda::kWaitFirst | cuda::kTrigger), 0u);
}

// Groups of 96 columns of a sliced gate, in registers.
TEST_F(CudaNormStages, HeldKernelGetsGroups) {
  StagesCall call(1000);
  const int64_t strides[] = {1536, 1};
  call.gate.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_BF16);
  call.gate.strides = strides;
  call.args.branch_norm = 0, call.args.branch_eps = 0, call.args.branch_weight_offset = 0;
  call.args.flags &= ~uint32_t{FASTNORM_NORM_ALPHA};
  call.args.alpha = 0;
  call.args.branch_weight = call.args.sum_scale = nullptr;
  call.args.gate_source = FASTNORM_GATE_FROM_ROUNDED;
  const fastnorm_info info = query(call);
  EXPECT_STREQ(info.kernel, "bf16 gated 8x2");
  EXPECT_EQ(info.blocks, 500u) << "16 groups a block";
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  ASSERT_TRUE(recorded[0].is_held);
  EXPECT_EQ(recorded[0].launch.block.x, 128u);
  EXPECT_EQ(recorded[0].launch.grid.x, 500u);
  const cuda::HeldStagesParams& p = recorded[0].held;
  EXPECT_EQ(p.norm.rows, 8000u);
  EXPECT_EQ(p.norm.vectors, 12);
  EXPECT_EQ(p.norm.inv_n, 1.0f / 96);
  EXPECT_EQ(p.groups, 8u);
  EXPECT_EQ(p.weight_step, 0u);
  EXPECT_EQ(p.gate.row.stride, 3072);
  EXPECT_EQ(p.gate_act, cuda::StageFunction::kSilu);
  EXPECT_NE(p.bits & cuda::kStagesGateRounded, 0u);
  call.weight.shape = call.shape + 1;
  ASSERT_EQ(run(call), FASTNORM_OK) << fastnorm_last_error();
  EXPECT_EQ(recorded[0].held.weight_step, 192u);
}

// Alone, and beside a call without stages: each has a launch of its own.
TEST_F(CudaNormStages, PrepareLoadsTheKernelOfEachCall) {
  const StagesCall call(64);
  StagesCall plain(64);
  plain.y.data = static_cast<char*>(plain.y.data) + (size_t{1} << 30);
  plain.args = {};
  plain.args.struct_size = sizeof plain.args;
  plain.args.x = &plain.x, plain.args.y = &plain.y;
  const fastnorm_norm_args* const both[] = {&plain.args, &call.args};
  ASSERT_EQ(fastnorm_norm_many_prepare(context, both, 2), FASTNORM_OK) << fastnorm_last_error();
  EXPECT_EQ(notes.loaded.size(), 2u);
  notes.on_launch = nullptr;
  ASSERT_EQ(fastnorm_norm_many(context, both, 2, nullptr, 0, kStream), FASTNORM_OK)
      << fastnorm_last_error();
  EXPECT_EQ(notes.launches, 2);
}

TEST_F(CudaNormStages, BadInputLaunchesNothing) {
  StagesCall call(8);
  call.args.group_size = 100;
  EXPECT_EQ(run(call), FASTNORM_ERROR_SHAPE);
  EXPECT_EQ(notes.launches, 0);
}

}  // namespace
}  // namespace fastnorm::test
