// The backward pass from the C ABI to its calls of the CUDA runtime, which only records them.
#include "fastnorm/norm_backward.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fastnorm/fastnorm.h"
#include "unit/cuda/pretend_kernels.h"
#include "unit/cuda/pretend_runtime.h"

namespace fastnorm::test {
namespace {

constexpr uintptr_t kMemory = uintptr_t{1} << 40;  // nothing is there
void* const kStream = reinterpret_cast<void*>(uintptr_t{48});
char* const kWorkspace = reinterpret_cast<char*>(uintptr_t{1} << 38);

// bf16 rows with a weight. All outputs of an RMSNorm, with f32 gradients of the weight.
struct BackwardCall {
  BackwardCall(int64_t rows, int64_t n) : shape{rows, n} {
    const struct {
      fastnorm_tensor* tensor;
      int32_t rank;
      const int64_t* extents;
      fastnorm_dtype_id dtype;
    } all[] = {
        {&dy, 2, shape, FASTNORM_DTYPE_BF16},        {&x, 2, shape, FASTNORM_DTYPE_BF16},
        {&dx, 2, shape, FASTNORM_DTYPE_BF16},        {&residual, 2, shape, FASTNORM_DTYPE_BF16},
        {&rstd, 1, shape, FASTNORM_DTYPE_F32},       {&weight, 1, shape + 1, FASTNORM_DTYPE_BF16},
        {&dweight, 1, shape + 1, FASTNORM_DTYPE_F32}};
    int number = 0;
    for (const auto& a : all) {
      a.tensor->data = reinterpret_cast<void*>(kMemory + (static_cast<uintptr_t>(++number) << 36));
      a.tensor->device_type = FASTNORM_DEVICE_CUDA;
      a.tensor->ndim = a.rank;
      a.tensor->dtype = fastnorm_dtype_of(a.dtype);
      a.tensor->shape = a.extents;
    }
    args.struct_size = sizeof args;
    args.kind = FASTNORM_NORM_RMS;
    args.dy = &dy, args.x = &x, args.weight = &weight, args.rstd = &rstd;
    args.dx = &dx, args.dweight = &dweight;
  }
  BackwardCall(const BackwardCall&) = delete;

  int64_t shape[2];
  fastnorm_tensor dy = {}, x = {}, dx = {}, residual = {}, rstd = {}, weight = {}, dweight = {};
  fastnorm_norm_backward_args args = {};
};

struct Recorded {
  Launch launch;
  cuda::NormBackwardParams params;
};
thread_local std::vector<Recorded> recorded;

void record(const Launch& launch) {
  ASSERT_NE(entry_of<cuda::NormBackwardFamily>(launch.kernel), nullptr);
  recorded.push_back({launch, *static_cast<const cuda::NormBackwardParams*>(launch.params)});
}

class CudaNormBackward : public testing::Test {
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

  fastnorm_info query(const BackwardCall& call) {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    EXPECT_EQ(fastnorm_norm_backward_query(context, &call.args, &info), FASTNORM_OK)
        << fastnorm_last_error();
    return info;
  }
  std::string kernel(const BackwardCall& call) { return query(call).kernel; }
  fastnorm_status try_run(const BackwardCall& call) {
    recorded.clear();
    const auto bytes = static_cast<size_t>(query(call).workspace_bytes);
    return fastnorm_norm_backward(context, &call.args, bytes == 0 ? nullptr : kWorkspace, bytes,
                                  kStream);
  }
  void run(const BackwardCall& call) {
    ASSERT_EQ(try_run(call), FASTNORM_OK) << fastnorm_last_error();
  }

  fastnorm_context* context = nullptr;
};

TEST_F(CudaNormBackward, ManyRowsTakeAKernelAndAFold) {
  const BackwardCall call(16384, 8192);
  EXPECT_NE(kernel(call).find("persistent"), std::string::npos) << kernel(call);
  EXPECT_EQ(query(call).workspace_bytes, 128u * 8192 * 4);
  run(call);
  ASSERT_EQ(recorded.size(), 2u);
  EXPECT_EQ(recorded[0].launch.grid.x, 128u);
  for (const Recorded& r : recorded) {
    EXPECT_EQ(r.launch.early, 1);
    EXPECT_NE(r.params.bits & kBackwardTrigger, 0u);
  }
  for (const Recorded& r : recorded) {
    EXPECT_EQ(r.launch.stream, kStream);
    EXPECT_EQ(r.launch.context, primary_context(0));
    EXPECT_EQ(r.params.shared_rows, 16384u);
    EXPECT_EQ(r.params.blocks, 128u);
    EXPECT_EQ(r.params.lanes, 1u);
    EXPECT_EQ(static_cast<void*>(r.params.partial[0]), kWorkspace);
  }
  EXPECT_EQ(notes.context, nullptr) << "current is what was";
}

TEST_F(CudaNormBackward, FewRowsTakeOneLaunchUnlessDxReplacesAnInput) {
  BackwardCall call(512, 4096);
  EXPECT_NE(kernel(call).find("few"), std::string::npos) << kernel(call);
  EXPECT_EQ(query(call).workspace_bytes, 0u);
  run(call);
  EXPECT_EQ(recorded.size(), 1u);
  call.args.dx = &call.dy;
  EXPECT_NE(kernel(call).find("persistent"), std::string::npos) << kernel(call);
  run(call);
  EXPECT_EQ(recorded.size(), 2u);
  call.args.dweight = nullptr;
  EXPECT_NE(kernel(call).find("few"), std::string::npos) << "dx alone reads each row once";
  EXPECT_EQ(query(call).workspace_bytes, 0u);
}

// Without dependent launch before and behind the call, its fold still starts early.
TEST_F(CudaNormBackward, NoDependentLaunchAroundTheCall) {
  BackwardCall call(16384, 8192);
  call.args.flags = FASTNORM_NORM_BACKWARD_NO_PDL;
  run(call);
  ASSERT_EQ(recorded.size(), 2u);
  EXPECT_EQ(recorded[0].launch.early, -1) << "the call does not wait";
  EXPECT_EQ(recorded[1].launch.early, 1) << "the fold does";
  EXPECT_NE(recorded[0].params.bits & kBackwardTrigger, 0u);
  EXPECT_EQ(recorded[1].params.bits & kBackwardTrigger, 0u);
}

TEST_F(CudaNormBackward, ClustersWhereTheDeviceHasThem) {
  const BackwardCall call(8192, 16384);
  run(call);
  ASSERT_EQ(recorded.size(), 2u);
  EXPECT_EQ(recorded[0].launch.cluster, 2u);
  EXPECT_EQ(recorded[0].launch.grid.x, 128u);
  fastnorm_context_destroy(context);
  machine.largest_cluster = 1;
  ASSERT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CUDA, 0}, nullptr, &context), FASTNORM_OK);
  EXPECT_NE(kernel(call).find(" rows "), std::string::npos) << kernel(call);
}

TEST_F(CudaNormBackward, TheGeneralFormReadsColumnsBeforeItWritesRows) {
  BackwardCall call(1000, 4096);
  call.shape[1] = 4097;
  call.args.dx = &call.x;
  call.args.flags = FASTNORM_NORM_BACKWARD_NO_PDL | FASTNORM_NORM_BACKWARD_PDL_WAIT |
                    FASTNORM_NORM_BACKWARD_PDL_TRIGGER;
  run(call);
  ASSERT_EQ(recorded.size(), 3u);
  for (const Recorded& r : recorded) {
    EXPECT_EQ(r.launch.early, 1);
    EXPECT_NE(r.params.bits & kBackwardTrigger, 0u);
  }
  EXPECT_EQ(recorded[1].launch.grid.x, 1000u) << "rows";
  call.args.rstd = nullptr;
  run(call);
  ASSERT_EQ(recorded.size(), 4u) << "and statistics first of all";
  EXPECT_NE(recorded[0].params.bits & kBackwardStatisticsOnly, 0u);
  EXPECT_EQ(recorded[0].params.rstd.data, kWorkspace);
  EXPECT_EQ(recorded[2].params.bits & kBackwardComputeStatistics, 0u);
  call.args.dweight = nullptr;
  EXPECT_EQ(query(call).workspace_bytes, 0u) << "dx alone keeps nothing";
  run(call);
  ASSERT_EQ(recorded.size(), 1u);
  EXPECT_NE(recorded[0].params.bits & kBackwardComputeStatistics, 0u);
  EXPECT_EQ(recorded[0].params.bits & kBackwardStatisticsOnly, 0u);
}

// RMSNorm's kernels that hold rows have no sums of dbias. They are summed before, from dy alone.
TEST_F(CudaNormBackward, DbiasOfRmsIsSummedApart) {
  BackwardCall call(16384, 8192);
  const fastnorm_info plain = query(call);
  fastnorm_tensor dbias = call.dweight;
  dbias.data = reinterpret_cast<void*>(kMemory + (uintptr_t{10} << 36));
  call.args.dbias = &dbias;
  const fastnorm_info info = query(call);
  EXPECT_STREQ(info.kernel, plain.kernel);
  EXPECT_STREQ(info.choice, plain.choice);
  EXPECT_EQ(info.launches, 4);
  EXPECT_EQ(info.workspace_bytes, 2 * plain.workspace_bytes);
  EXPECT_EQ(info.bytes_read, plain.bytes_read) << "dy counts once";
  EXPECT_EQ(info.bytes_written, plain.bytes_written + 8192 * 4);
  run(call);
  ASSERT_EQ(recorded.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(recorded[i].params.dweight.data != nullptr, i >= 2) << i;
    EXPECT_EQ(static_cast<void*>(recorded[i].params.dbias.data), i < 2 ? dbias.data : nullptr) << i;
    EXPECT_EQ(recorded[i].params.dx.data != nullptr, i >= 2) << i;
  }
  EXPECT_EQ(static_cast<void*>(recorded[0].params.partial[1]), kWorkspace);
  EXPECT_EQ(static_cast<void*>(recorded[2].params.partial[0]), kWorkspace + plain.workspace_bytes);
  call.args.dx = &call.dy;
  run(call);
  ASSERT_EQ(recorded.size(), 4u) << "dy is summed before dx replaces it";
  // Few rows, and the general form, which sums both at once.
  call.shape[0] = 512, call.shape[1] = 4096;
  call.args.dx = &call.dx;
  EXPECT_NE(kernel(call).find(" few "), std::string::npos) << kernel(call);
  EXPECT_EQ(query(call).launches, 3);
  call.shape[1] = 4097;
  EXPECT_NE(kernel(call).find(" rows "), std::string::npos) << kernel(call);
  EXPECT_EQ(query(call).launches, 3);
}

TEST_F(CudaNormBackward, AGateHasKernelsOfItsOwn) {
  BackwardCall call(1000, 4096);
  fastnorm_tensor gate = call.x, dgate = call.x, bias = call.weight;
  gate.data = reinterpret_cast<void*>(kMemory + (uintptr_t{10} << 36));
  dgate.data = reinterpret_cast<void*>(kMemory + (uintptr_t{11} << 36));
  bias.data = reinterpret_cast<void*>(kMemory + (uintptr_t{12} << 36));
  call.args.gate = &gate, call.args.dgate = &dgate, call.args.bias = &bias;
  call.args.gate_act = FASTNORM_ACTIVATION_SILU;
  call.args.gate_source = FASTNORM_GATE_FROM_ROUNDED;
  EXPECT_NE(kernel(call).find("gated rows"), std::string::npos) << kernel(call);
  run(call);
  ASSERT_EQ(recorded.size(), 3u);
  for (const Recorded& r : recorded) {
    EXPECT_EQ(static_cast<void*>(r.params.gate.data), gate.data);
    EXPECT_EQ(static_cast<void*>(r.params.dgate.data), dgate.data);
    EXPECT_EQ(static_cast<void*>(r.params.bias.data), bias.data);
    EXPECT_EQ(r.params.gate_act, cuda::StageFunction::kSilu);
    EXPECT_NE(r.params.bits & kBackwardRoundResult, 0u);
    EXPECT_EQ(r.params.bits & kBackwardGateBefore, 0u);
  }
  EXPECT_EQ(recorded[1].launch.grid.x, 1000u) << "rows";
  call.args.gate_source = FASTNORM_GATE_FROM_F32;
  call.args.gate_position = FASTNORM_GATE_BEFORE_NORM;
  call.args.group_size = 128;
  call.args.rstd = nullptr;
  run(call);
  ASSERT_EQ(recorded.size(), 3u) << "statistics first, then a held form and the fold";
  EXPECT_NE(recorded[0].params.bits & kBackwardGateBefore, 0u);
  EXPECT_EQ(recorded[0].params.n, 128);
  EXPECT_EQ(recorded[0].params.groups, 32u);
  EXPECT_EQ(recorded[0].launch.grid.x, 1000u * 32 / 4) << "a warp has a group";
  EXPECT_EQ(recorded[0].params.bits & kBackwardRoundResult, 0u);
  const cuda::NormBackwardParams& held = recorded[1].params;
  EXPECT_NE(held.bits & kBackwardGateBefore, 0u);
  EXPECT_NE(held.bits & kBackwardLean, 0u) << "a group's rows are evenly strided";
  EXPECT_EQ(held.x.stride[0], 4096 * 2);
  EXPECT_EQ(held.x.stride[1], 128 * 2);
  EXPECT_EQ(recorded[1].launch.grid.y, 32u);
}

// Rows that are no multiple of 16 bytes run on general kernels.
TEST_F(CudaNormBackward, ABranchHasKernelsOfItsOwn) {
  BackwardCall call(1000, 4100);
  fastnorm_tensor branch = call.x, dbranch = call.x, weight = call.weight, dweight = call.dweight;
  uintptr_t number = 20;
  for (fastnorm_tensor* t : {&branch, &dbranch, &weight, &dweight})
    t->data = reinterpret_cast<void*>(kMemory + (number++ << 36));
  call.args.branch = &branch, call.args.dbranch = &dbranch;
  EXPECT_NE(kernel(call).find("branch rows"), std::string::npos) << kernel(call);
  run(call);
  ASSERT_EQ(recorded.size(), 3u) << "columns, rows and fold";
  call.args.branch_norm = 1, call.args.branch_rounding = FASTNORM_ROUND_EVERY_STEP;
  call.args.branch_weight = &weight, call.args.dbranch_weight = &dweight;
  call.args.branch_weight_offset = 1, call.args.alpha = 2;
  call.args.flags = FASTNORM_NORM_BACKWARD_ALPHA | FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT;
  run(call);
  ASSERT_EQ(recorded.size(), 5u) << "statistics of the branch, and c1 of x's rows, first";
  const cuda::NormBackwardParams& first = recorded[0].params;
  EXPECT_EQ(static_cast<void*>(first.x.data), branch.data);
  EXPECT_EQ(static_cast<void*>(first.rstd.data), kWorkspace);
  EXPECT_NE(first.bits & kBackwardStatisticsOnly, 0u);
  for (size_t i = 1; i < recorded.size(); ++i) {
    const cuda::NormBackwardParams& p = recorded[i].params;
    EXPECT_EQ(static_cast<void*>(p.x.data), call.x.data);
    EXPECT_EQ(static_cast<void*>(p.branch.branch.data), branch.data);
    EXPECT_EQ(static_cast<void*>(p.branch.rstd.data), kWorkspace);
    EXPECT_EQ(static_cast<void*>(p.branch.weight.data), weight.data);
    EXPECT_EQ(static_cast<void*>(p.branch.dweight.data), dweight.data);
    EXPECT_EQ(p.branch.alpha, 2);
    EXPECT_EQ(p.branch.weight_offset, 1);
    EXPECT_NE(p.bits & kBackwardBranchNorm, 0u);
    EXPECT_NE(p.bits & kBackwardBranchRoundGain, 0u);
    EXPECT_NE(p.bits & kBackwardAccumulateBranchDweight, 0u);
    EXPECT_NE(p.partial[2], nullptr);
    EXPECT_EQ(p.partial[3], nullptr);
  }
  EXPECT_NE(recorded[3].params.bits & kBackwardKeptMeans, 0u);
  EXPECT_EQ(recorded[3].launch.grid.x, 1000u) << "rows";
  EXPECT_EQ(recorded[4].launch.grid.x, 2u * 129) << "dweight and dbranch_weight, by 32 columns";
}

TEST_F(CudaNormBackward, KernelsAreLoadedAndAllowedTheirMemoryOnce) {
  const BackwardCall call(16384, 8192);
  ASSERT_EQ(fastnorm_norm_backward_prepare(context, &call.args), FASTNORM_OK);
  EXPECT_EQ(notes.loaded.size(), 2u);
  ASSERT_EQ(notes.shared_bytes.size(), 1u);
  EXPECT_EQ(notes.shared_bytes.begin()->second, 3 * 2 * 2 * 512 * 16);
  machine.failures = {{"cudaFuncSetAttribute", cudaErrorInvalidValue}};
  run(call);  // not asked again
  const BackwardCall other(16384, 16384);
  EXPECT_EQ(try_run(other), FASTNORM_ERROR_DEVICE);
  EXPECT_TRUE(recorded.empty()) << "nothing is launched";
}

TEST_F(CudaNormBackward, Failures) {
  const BackwardCall call(16384, 8192);
  run(call);
  machine.failures = {{"cudaLaunchKernelExC", cudaErrorInvalidValue}};
  EXPECT_EQ(try_run(call), FASTNORM_ERROR_DEVICE);
  EXPECT_EQ(notes.last_error, cudaSuccess);
  EXPECT_EQ(notes.context, nullptr);
}

TEST_F(CudaNormBackward, NoRows) {
  BackwardCall call(0, 4096);
  run(call);
  ASSERT_EQ(recorded.size(), 1u) << "dweight is zeroed";
  EXPECT_EQ(recorded[0].params.blocks, 0u);
  call.args.flags = FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT;
  run(call);
  EXPECT_TRUE(recorded.empty());
}

}  // namespace
}  // namespace fastnorm::test
