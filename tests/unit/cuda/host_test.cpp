// The library's host code for GPUs, from the C ABI to its calls of the CUDA runtime. The runtime
// here only records them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <set>
#include <string>
#include <thread>

#include "core/peer/blob.h"
#include "cuda/families.h"
#include "cuda/norm/launch_params.h"
#include "fastnorm/fastnorm.h"
#include "fastnorm/peer.h"
#include "ref/data.h"
#include "unit/cuda/pretend_kernels.h"
#include "unit/cuda/pretend_runtime.h"

// ThreadSanitizer has its own operator new.
#if defined(__SANITIZE_THREAD__)
#define FASTNORM_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#define FASTNORM_COUNTS_ALLOCATIONS !__has_feature(thread_sanitizer)
#else
#define FASTNORM_COUNTS_ALLOCATIONS 1
#endif

#if FASTNORM_COUNTS_ALLOCATIONS
namespace {

thread_local int64_t allocations;
thread_local int64_t allocations_left = -1;  // until one fails; -1 = none does

}  // namespace

// Counts a thread's allocations; the array forms call it. Not inlined: compilers would see malloc()
// and free() without new.
__attribute__((noinline)) void* operator new(size_t bytes) {
  ++allocations;
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

namespace fastnorm::test {
namespace {

constexpr uintptr_t kMemory = uintptr_t{1} << 40;  // nothing is there
void* const kStream = reinterpret_cast<void*>(uintptr_t{48});

// A call on GPU tensors. It refers to its tensors.
struct Call {
  explicit Call(std::vector<int64_t> extents, fastnorm_dtype_id dtype = FASTNORM_DTYPE_BF16,
                int number = 0, int device = 0)
      : shape(std::move(extents)) {
    tensor.data = reinterpret_cast<void*>(kMemory << number);
    tensor.device_type = FASTNORM_DEVICE_CUDA;
    tensor.device_id = device;
    tensor.ndim = static_cast<int32_t>(shape.size());
    tensor.dtype = fastnorm_dtype_of(dtype);
    tensor.shape = shape.data();
    args.struct_size = sizeof args;
    args.x = args.y = &tensor;
    args.eps = 1e-6f;
  }
  Call(const Call&) = delete;

  fastnorm_info info(fastnorm_context* context) const {
    fastnorm_info found = {};
    found.struct_size = sizeof found;
    EXPECT_EQ(fastnorm_norm_query(context, &args, &found), FASTNORM_OK) << fastnorm_last_error();
    return found;
  }

  std::vector<int64_t> shape;
  fastnorm_tensor tensor = {};
  fastnorm_norm_args args = {};
};

struct Recorded {
  Launch launch;
  cuda::NormParams params;
  cuda::NormPairParams pair;
};
thread_local std::vector<Recorded> recorded;

void record(const Launch& launch) {
  Recorded r = {};
  r.launch = launch;
  if (is_pair(launch.kernel)) {
    r.pair = *static_cast<const cuda::NormPairParams*>(launch.params);
  } else if (entry_of<cuda::NormFamily>(launch.kernel) != nullptr) {
    r.params = *static_cast<const cuda::NormParams*>(launch.params);
  }
  recorded.push_back(r);
}

fastnorm_status create(fastnorm_context** context, int device = 0) {
  return fastnorm_context_create({FASTNORM_DEVICE_CUDA, device}, nullptr, context);
}

// Each test starts on a machine with one H200 and a thread without a current context.
class CudaHost : public testing::Test {
 protected:
  void SetUp() override {
    machine = {};
    notes = {};
    notes.on_launch = record;
    recorded.clear();
  }
  void TearDown() override { fastnorm_context_destroy(context); }

  void make(int device = 0) {
    ASSERT_EQ(create(&context, device), FASTNORM_OK) << fastnorm_last_error();
    notes.loaded.clear();
  }
  // Runs a call that must be one launch.
  const Recorded& run(const Call& call) {
    recorded.clear();
    EXPECT_EQ(fastnorm_norm(context, &call.args, nullptr, 0, kStream), FASTNORM_OK)
        << fastnorm_last_error();
    EXPECT_EQ(recorded.size(), 1u);
    return recorded.at(0);
  }

  static std::string refusal() { return fastnorm_last_error(); }

  fastnorm_context* context = nullptr;
};

int32_t index_of(const std::string& kernel) {
  const std::span<const NormEntry> table = cuda::table_of<cuda::NormFamily>(cuda::kSm90);
  for (size_t i = 0; i < table.size(); ++i) {
    if (kernel == table[i].name) return static_cast<int32_t>(i);
  }
  return -1;
}

// --- contexts ---

TEST_F(CudaHost, ContextsLeaveCurrentWhatWas) {
  for (void* const before : {static_cast<void*>(nullptr), primary_context(0), other_context(0)}) {
    notes.context = before;
    fastnorm_context* made = nullptr;
    ASSERT_EQ(create(&made), FASTNORM_OK) << fastnorm_last_error();
    EXPECT_EQ(notes.context, before);
    fastnorm_context_destroy(made);
    EXPECT_EQ(notes.context, before);
  }
}

TEST_F(CudaHost, DevicesThatAreNotThereSayWhatWasFound) {
  EXPECT_EQ(create(&context, 1), FASTNORM_ERROR_DEVICE);
  EXPECT_NE(refusal().find("device.device_id is 1 and there are 1 CUDA devices: the driver found "
                           "supports CUDA 13.0"),
            std::string::npos)
      << refusal();
  EXPECT_EQ(create(&context, -1), FASTNORM_ERROR_DEVICE);
  machine.driver = 0;
  machine.failures["cudaGetDeviceCount"] = cudaErrorInsufficientDriver;
  EXPECT_EQ(create(&context), FASTNORM_ERROR_DEVICE);
  EXPECT_NE(refusal().find("no CUDA driver was found"), std::string::npos) << refusal();
  EXPECT_NE(refusal().find("the runtime's words"), std::string::npos) << refusal();
  EXPECT_EQ(fastnorm_last_device_error(), cudaErrorInsufficientDriver);
  EXPECT_EQ(notes.last_error, cudaSuccess) << "the caller's next cudaGetLastError() is clean";
  int32_t count = -1;
  EXPECT_EQ(fastnorm_device_count(FASTNORM_DEVICE_CUDA, &count), FASTNORM_OK);
  EXPECT_EQ(count, 0);
}

TEST_F(CudaHost, DriversThatAreTooOld) {
  for (const char* function : {"cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxGetDevice"}) {
    machine.missing_function = function;
    EXPECT_EQ(create(&context), FASTNORM_ERROR_DEVICE);
    EXPECT_NE(refusal().find(function), std::string::npos) << refusal();
    EXPECT_NE(refusal().find("12.0 or later"), std::string::npos) << refusal();
  }
}

TEST_F(CudaHost, GpusWithoutKernels) {
  machine.capability = 75;
  EXPECT_EQ(create(&context), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(refusal().find("compute capability 7.5"), std::string::npos) << refusal();
  fastnorm_device_info info = {};
  info.struct_size = sizeof info;
  EXPECT_EQ(fastnorm_device_describe({FASTNORM_DEVICE_CUDA, 0}, &info), FASTNORM_OK);
  EXPECT_STREQ(info.kernel_arch, "none");
  // Later GPUs run PTX.
  machine.capability = 103;
  EXPECT_EQ(fastnorm_device_describe({FASTNORM_DEVICE_CUDA, 0}, &info), FASTNORM_OK);
  EXPECT_STREQ(info.kernel_arch, "ptx_90");
  EXPECT_EQ(info.capability, 103);
  EXPECT_EQ(info.multiprocessors, 132);
}

// Whatever fails while a context is created, nothing remains.
TEST_F(CudaHost, FailuresOfTheRuntimeWhileAContextIsMade) {
  notes.context = other_context(0);
  for (const char* function :
       {"cudaGetDeviceProperties", "cudaSetDevice", "cudaGetDriverEntryPointByVersion"}) {
    machine.failures = {{function, cudaErrorMemoryAllocation}};
    EXPECT_EQ(create(&context), FASTNORM_ERROR_OUT_OF_MEMORY) << function;
    EXPECT_EQ(context, nullptr);
    EXPECT_EQ(fastnorm_last_device_error(), cudaErrorMemoryAllocation);
    EXPECT_EQ(notes.context, other_context(0)) << function;
    EXPECT_EQ(notes.last_error, cudaSuccess) << function;
  }
}

TEST_F(CudaHost, ClustersThatASliceOfAGpuCanSchedule) {
  for (const int largest : {8, 4, 1}) {
    machine.largest_cluster = static_cast<unsigned>(largest);
    fastnorm_context* made = nullptr;
    ASSERT_EQ(create(&made), FASTNORM_OK);
    EXPECT_EQ(notes.last_error, cudaSuccess);
    for (const int64_t n : {8192, 16384, 262144, 1048576}) {
      const fastnorm_info info = Call({1, n}).info(made);
      EXPECT_LE(info.blocks_per_row, largest) << n;
      if (n == 1048576 && largest == 8) {
        EXPECT_EQ(info.blocks_per_row, 8) << "streamed, by a cluster";
      }
    }
    fastnorm_context_destroy(made);
  }
}

// Lists depend on rows and lengths. The number of SMs decides nothing.
TEST_F(CudaHost, PlansTheSameForAnyNumberOfMultiprocessors) {
  int32_t threads = 0;
  for (const int multiprocessors : {132, 114, 148}) {
    machine.multiprocessors = multiprocessors;
    fastnorm_context* made = nullptr;
    ASSERT_EQ(create(&made), FASTNORM_OK);
    Call call({512, 8192});
    fastnorm_tensor residual = call.tensor;
    residual.data = reinterpret_cast<void*>(kMemory << 1);
    call.args.residual = call.args.residual_out = &residual;
    if (threads == 0) threads = call.info(made).threads_per_row;
    EXPECT_EQ(call.info(made).threads_per_row, threads) << multiprocessors;
    fastnorm_context_destroy(made);
  }
}

// --- launches ---

TEST_F(CudaHost, LaunchesWhatWasPlanned) {
  make();
  ref::Random random(11);
  constexpr fastnorm_dtype_id kDtypes[] = {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_F16,
                                           FASTNORM_DTYPE_BF16};
  std::set<unsigned> clusters;
  for (int i = 0; i < 2000; ++i) {
    const int64_t rows = 1 + random.below(int64_t{1} << random.below(14));
    const int64_t n = 1 + random.below(int64_t{1} << random.below(21));
    Call call({rows, n}, random.of(kDtypes));
    if (random.one_in(2)) call.args.kind = FASTNORM_NORM_LAYER;
    constexpr uint32_t kFlags[] = {0, FASTNORM_NORM_PDL_WAIT, FASTNORM_NORM_NO_PDL,
                                   FASTNORM_NORM_NO_PDL | FASTNORM_NORM_PDL_WAIT,
                                   FASTNORM_NORM_NO_PDL | FASTNORM_NORM_PDL_TRIGGER};
    call.args.flags = random.of(kFlags);
    const bool by_default = (call.args.flags & FASTNORM_NORM_NO_PDL) == 0,
               waits = by_default || (call.args.flags & FASTNORM_NORM_PDL_WAIT) != 0,
               triggers = by_default || (call.args.flags & FASTNORM_NORM_PDL_TRIGGER) != 0;
    const fastnorm_info info = call.info(context);
    const Recorded& r = run(call);
    const std::string what =
        std::string(info.kernel) + " of " + std::to_string(rows) + " x " + std::to_string(n);
    const int32_t index = index_of(info.kernel);
    ASSERT_GE(index, 0) << what;
    EXPECT_EQ(r.launch.kernel, kernel_address(index)) << what;
    EXPECT_EQ(r.launch.grid.x, info.blocks) << what;
    EXPECT_EQ(r.launch.grid.y * r.launch.grid.z, 1u) << what;
    EXPECT_EQ(r.launch.block.x, static_cast<unsigned>(info.threads_per_row / info.blocks_per_row *
                                                      info.rows_per_block))
        << what;
    EXPECT_EQ(r.launch.cluster,
              info.blocks_per_row > 1 ? static_cast<unsigned>(info.blocks_per_row) : 0u)
        << what;
    EXPECT_EQ(r.launch.early, waits ? 1 : -1) << what;
    EXPECT_EQ((r.params.bits & cuda::kWaitFirst) != 0, waits) << what;
    EXPECT_EQ((r.params.bits & cuda::kTrigger) != 0, triggers) << what;
    EXPECT_EQ(r.launch.stream, kStream) << what;
    EXPECT_EQ(r.launch.context, primary_context(0)) << what;
    EXPECT_EQ(r.params.rows, static_cast<uint32_t>(rows)) << what;
    EXPECT_EQ(r.params.n, n) << what;
    EXPECT_EQ(r.params.x.data, call.tensor.data) << what;
    EXPECT_EQ(r.params.y.data, call.tensor.data) << what;
    clusters.insert(r.launch.cluster);
  }
  EXPECT_GE(clusters.size(), 3u) << "no cluster, and two sizes";
}

// A context without programmatic dependent launch: calls use what their flags ask for.
TEST_F(CudaHost, ContextWithoutDependentLaunch) {
  fastnorm_context_options options = {};
  options.struct_size = sizeof options;
  options.flags = FASTNORM_CONTEXT_NO_PDL;
  ASSERT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CUDA, 0}, &options, &context), FASTNORM_OK);
  Call call({16, 4096});
  const Recorded without = run(call);
  EXPECT_EQ(without.launch.early, -1);
  EXPECT_EQ(without.params.bits & (cuda::kWaitFirst | cuda::kWaitAfterWeights | cuda::kTrigger),
            0u);
  call.args.flags = FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_CONSTANT_WEIGHTS;
  const Recorded asked = run(call);
  EXPECT_EQ(asked.launch.early, 1);
  EXPECT_NE(asked.params.bits & cuda::kWaitAfterWeights, 0u);
  EXPECT_EQ(asked.params.bits & cuda::kTrigger, 0u);
  options.flags = FASTNORM_CONTEXT_NO_PDL * 2;
  fastnorm_context* refused = nullptr;
  EXPECT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CUDA, 0}, &options, &refused),
            FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(refusal().find("options.flags is 0x4"), std::string::npos) << refusal();
}

TEST_F(CudaHost, NoRowsAreNoLaunch) {
  make();
  const Call call({0, 4096});
  EXPECT_EQ(fastnorm_norm(context, &call.args, nullptr, 0, kStream), FASTNORM_OK);
  EXPECT_EQ(fastnorm_norm_prepare(context, &call.args), FASTNORM_OK);
  EXPECT_EQ(notes.launches, 0);
  EXPECT_TRUE(notes.loaded.empty());
}

// Heads of queries and keys are one grid: the keys' blocks of a token follow those of its queries.
// Calls between others are launched in order.
TEST_F(CudaHost, CallsOfAList) {
  make();
  const Call q({4096, 64, 128}), k({4096, 8, 128}, FASTNORM_DTYPE_BF16, 1),
      other({16, 4096}, FASTNORM_DTYPE_F16, 2);
  const fastnorm_norm_args* const list[] = {&q.args, &k.args, &other.args};
  ASSERT_EQ(fastnorm_norm_many(context, list, 3, nullptr, 0, kStream), FASTNORM_OK)
      << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 2u);
  const Recorded& pair = recorded[0];
  const fastnorm_info info = q.info(context);
  // Without a weight they run on a general kernel, with interleaved blocks.
  EXPECT_EQ(pair.launch.kernel, kernel_address(index_of(info.kernel), GridForm::kPair));
  EXPECT_EQ(pair.pair.call[0].second_share, (1ull << 32) / 9 + 1) << "8 of queries, 1 of keys";
  // The keys use the kernel of the queries.
  EXPECT_EQ(pair.launch.grid.x,
            info.blocks + 4096u * 8 / static_cast<unsigned>(info.rows_per_block));
  EXPECT_EQ(pair.launch.grid.y, 1u);
  EXPECT_EQ(pair.pair.call[0].x.data, q.tensor.data);
  EXPECT_EQ(pair.pair.call[1].x.data, k.tensor.data);
  EXPECT_EQ(pair.pair.call[1].rows, 4096u * 8);
  EXPECT_EQ(recorded[1].launch.kernel, kernel_address(index_of(other.info(context).kernel)));
  // Preparing the calls loads the kernels that will run.
  ASSERT_EQ(fastnorm_norm_many_prepare(context, list, 3), FASTNORM_OK);
  for (const Recorded& r : recorded) {
    EXPECT_NE(std::find(notes.loaded.begin(), notes.loaded.end(), r.launch.kernel),
              notes.loaded.end());
  }
}

// Lean kernels for short rows know whether rows have one index or two. Heads have a grid of tokens
// by blocks of heads, for one call as for two.
TEST_F(CudaHost, HeadsHaveAGridOfTheirOwn) {
  make();
  const int64_t columns = 128, strides[3] = {80 * 128, 128, 1};
  fastnorm_tensor weight = {};
  weight.data = reinterpret_cast<void*>(kMemory << 4);
  weight.device_type = FASTNORM_DEVICE_CUDA;
  weight.ndim = 1;
  weight.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_BF16);
  weight.shape = &columns;
  Call heads({64, 72, 128}), keys({64, 8, 128}, FASTNORM_DTYPE_BF16, 2), few({64, 4, 128}),
      rows({64 * 72, 128}), two_rows({64 * 72, 128}, FASTNORM_DTYPE_BF16, 1);
  for (Call* call : {&heads, &keys, &few, &rows, &two_rows}) call->args.weight = &weight;
  heads.tensor.strides = keys.tensor.strides = few.tensor.strides = strides;

  const fastnorm_info info = heads.info(context);
  EXPECT_STREQ(info.kernel, "bf16 plain rms once store vector bare 16x1");
  EXPECT_EQ(info.launches, 1);
  const Recorded lone = run(heads);
  EXPECT_EQ(lone.launch.kernel, kernel_address(index_of(info.kernel), GridForm::kHeads));
  EXPECT_EQ(lone.launch.grid.x, 9u);
  EXPECT_EQ(lone.launch.grid.y, 64u);
  EXPECT_EQ(lone.launch.block.x, 128u);
  EXPECT_EQ(info.blocks, 9u * 64);
  EXPECT_EQ(lone.pair.call[0].first_blocks, 9u) << "no second";
  EXPECT_EQ(lone.pair.call[0].rows, 72u);
  EXPECT_EQ(lone.pair.call[0].x_upper.stride[0], 80 * 128 * 2);
  notes.loaded.clear();
  ASSERT_EQ(fastnorm_norm_prepare(context, &heads.args), FASTNORM_OK);
  EXPECT_NE(std::find(notes.loaded.begin(), notes.loaded.end(), lone.launch.kernel),
            notes.loaded.end());

  recorded.clear();
  const fastnorm_norm_args* const both[] = {&heads.args, &keys.args};
  ASSERT_EQ(fastnorm_norm_many(context, both, 2, nullptr, 0, kStream), FASTNORM_OK)
      << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  EXPECT_EQ(recorded[0].launch.kernel, lone.launch.kernel);
  EXPECT_EQ(recorded[0].launch.grid.x, 10u);
  EXPECT_EQ(recorded[0].launch.grid.y, 64u);
  EXPECT_EQ(recorded[0].pair.call[0].first_blocks, 9u);
  EXPECT_EQ(recorded[0].pair.call[1].rows, 8u);
  EXPECT_EQ(recorded[0].pair.call[1].x.data, keys.tensor.data);
  // Half of each block would be idle.
  const Recorded rest = run(few);
  EXPECT_EQ(rest.launch.kernel,
            kernel_address(index_of(few.info(context).kernel), GridForm::kPair));
  EXPECT_EQ(rest.launch.grid.x, 32u);
  EXPECT_EQ(few.info(context).blocks, 32u);
  EXPECT_EQ(rest.pair.call[0].second_share, 0u) << "no second";
  EXPECT_EQ(rest.pair.call[0].rows, 64u * 4);
  EXPECT_EQ(rest.pair.call[0].outer[0].value, 4u);

  const fastnorm_info rows_info = rows.info(context);
  EXPECT_STREQ(rows_info.kernel, "bf16 plain rms once store vector bare-cs 16x1");
  EXPECT_EQ(run(rows).launch.kernel, kernel_address(index_of(rows_info.kernel)));

  // Two calls with one index, in one grid, are rows whose second index is 0.
  recorded.clear();
  const fastnorm_norm_args* const list[] = {&rows.args, &two_rows.args};
  ASSERT_EQ(fastnorm_norm_many(context, list, 2, nullptr, 0, kStream), FASTNORM_OK)
      << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  EXPECT_EQ(recorded[0].launch.kernel, kernel_address(index_of(info.kernel), GridForm::kPair));
  for (const cuda::NormParams& p : recorded[0].pair.call) {
    EXPECT_EQ(p.outer[0].value | p.outer[0].multiplier, 0u);
    EXPECT_EQ(p.outer[0].shift, 31u);
  }
}

// Unaligned rows are in shared memory. A launch asks for what its tile holds, and is allowed more
// than 48 KB once.
TEST_F(CudaHost, UnalignedRowsAskForSharedMemory) {
  make();
  const auto wanted = [&](const Call& call) {
    const NormEntry& entry = cuda::table_of<cuda::NormFamily>(
        cuda::kSm90)[static_cast<size_t>(index_of(call.info(context).kernel))];
    EXPECT_EQ(entry.key.access, Access::kUnaligned) << entry.name;
    return static_cast<size_t>(cuda::launch_shared_bytes(entry.key, entry.tile));
  };
  EXPECT_EQ(run(Call({1, 8192})).launch.shared_bytes, 0u);
  const Call some({4, 2001}), most({4, 32761});
  EXPECT_EQ(run(some).launch.shared_bytes, wanted(some));
  EXPECT_TRUE(notes.shared_bytes.empty());
  const void* const kernel = kernel_address(index_of(most.info(context).kernel));
  EXPECT_GT(wanted(most), size_t{48} << 10);
  machine.failures["cudaFuncSetAttribute"] = cudaErrorInvalidValue;
  EXPECT_EQ(fastnorm_norm(context, &most.args, nullptr, 0, kStream), FASTNORM_ERROR_DEVICE);
  EXPECT_NE(refusal().find("cudaFuncSetAttribute"), std::string::npos) << refusal();
  machine.failures.clear();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run(most).launch.shared_bytes, wanted(most));
    EXPECT_EQ(notes.shared_bytes.size(), 1u);
    EXPECT_EQ(static_cast<size_t>(notes.shared_bytes.at(kernel)), wanted(most));
    machine.failures["cudaFuncSetAttribute"] = cudaErrorInvalidValue;  // not asked again
  }
}

// The most bytes, up to a vector, that divide all addresses and strides whose bits are given.
TEST(AccessBytes, LowestBit) {
  for (const uint64_t bits : {0, 16, 48, 4096}) EXPECT_EQ(cuda::access_bytes(bits), 16) << bits;
  EXPECT_EQ(cuda::access_bytes(16 | 8), 8);
  EXPECT_EQ(cuda::access_bytes(16 | 4 | 8), 4);
  EXPECT_EQ(cuda::access_bytes(6), 2);
  EXPECT_EQ(cuda::access_bytes(4097), 1);
}

// No block needs more shared memory than every supported GPU has. The least is 99 KB on sm_120, of
// which a kernel's own memory takes up to 2.
TEST(LaunchShared, FitsEveryArchitecture) {
  constexpr int kOwn = 9 << 10;  // a kernel's folds, at most
  for (const ArchSpec* arch : cuda::kArchs) {
    const int most = (arch == &cuda::kSm90 ? 227 << 10 : 99 << 10) - kOwn;
    for (const NormEntry& entry : cuda::table_of<cuda::NormFamily>(*arch))
      EXPECT_LE(cuda::launch_shared_bytes(entry.key, entry.tile), most) << entry.name;
  }
}

// --- current contexts ---

TEST_F(CudaHost, CallsRunOnTheirDeviceAndLeaveCurrentWhatWas) {
  machine.gpus = 2;
  make(1);
  const Call call({64, 4096}, FASTNORM_DTYPE_BF16, 0, 1);
  for (void* const before :
       {static_cast<void*>(nullptr), primary_context(0), primary_context(1), other_context(0)}) {
    notes.context = before;
    EXPECT_EQ(run(call).launch.context, primary_context(1));
    EXPECT_EQ(notes.context, before);
    EXPECT_EQ(fastnorm_norm_prepare(context, &call.args), FASTNORM_OK);
    EXPECT_EQ(notes.context, before);
  }
  // Also if the launch fails.
  notes.context = primary_context(0);
  machine.failures["cudaLaunchKernelExC"] = cudaErrorInvalidValue;
  EXPECT_EQ(fastnorm_norm(context, &call.args, nullptr, 0, kStream), FASTNORM_ERROR_DEVICE);
  EXPECT_EQ(notes.context, primary_context(0));
}

TEST_F(CudaHost, AnotherContextOfTheSameDeviceIsRefused) {
  make();
  const Call call({64, 4096});
  notes.context = other_context(0);
  EXPECT_EQ(fastnorm_norm(context, &call.args, nullptr, 0, kStream), FASTNORM_ERROR_DEVICE);
  EXPECT_NE(refusal().find("not the primary context of device 0"), std::string::npos) << refusal();
  EXPECT_EQ(fastnorm_norm_prepare(context, &call.args), FASTNORM_ERROR_DEVICE);
  EXPECT_EQ(notes.launches, 0);
  EXPECT_EQ(notes.context, other_context(0));
}

TEST_F(CudaHost, ADeviceThatWasReset) {
  make();
  const Call call({64, 4096});
  machine.failures["cuCtxSetCurrent"] = cudaErrorInvalidValue;
  EXPECT_EQ(fastnorm_norm(context, &call.args, nullptr, 0, kStream), FASTNORM_ERROR_DEVICE);
  EXPECT_NE(refusal().find("cannot be made current"), std::string::npos) << refusal();
  EXPECT_EQ(notes.launches, 0);
}

// --- failures ---

TEST_F(CudaHost, FailedLaunchesAreToldAndLost) {
  make();
  const Call call({64, 4096});
  machine.failures["cudaLaunchKernelExC"] = cudaErrorInvalidValue;
  EXPECT_EQ(fastnorm_norm(context, &call.args, nullptr, 0, kStream), FASTNORM_ERROR_DEVICE);
  EXPECT_EQ(refusal(), "cudaLaunchKernelExC(&config, kernel, arguments): the runtime's words (1)");
  EXPECT_EQ(fastnorm_last_device_error(), cudaErrorInvalidValue);
  EXPECT_EQ(notes.last_error, cudaSuccess) << "the caller's next cudaGetLastError() is clean";
  machine.failures["cudaLaunchKernelExC"] = cudaErrorMemoryAllocation;
  EXPECT_EQ(fastnorm_norm(context, &call.args, nullptr, 0, kStream), FASTNORM_ERROR_OUT_OF_MEMORY);
  machine.failures.clear();
  run(call);
}

// Earlier work caused a fault, which the runtime reports to the next caller.
TEST_F(CudaHost, FaultsOfEarlierWorkAreToldAsSuch) {
  make();
  const Call call({64, 4096});
  for (const cudaError_t fault :
       {cudaErrorIllegalAddress, cudaErrorMisalignedAddress, cudaErrorIllegalInstruction,
        cudaErrorInvalidAddressSpace, cudaErrorInvalidPc, cudaErrorHardwareStackError,
        cudaErrorLaunchFailure, cudaErrorLaunchTimeout, cudaErrorAssert, cudaErrorECCUncorrectable,
        cudaErrorNvlinkUncorrectable}) {
    machine.failures = {{"cudaLaunchKernelExC", fault}, {"cudaFuncGetAttributes", fault}};
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(i == 0 ? fastnorm_norm(context, &call.args, nullptr, 0, kStream)
                       : fastnorm_norm_prepare(context, &call.args),
                FASTNORM_ERROR_DEVICE);
      EXPECT_EQ(refusal().find("a fault of earlier work on this device, found by "), 0u)
          << refusal();
      EXPECT_EQ(fastnorm_last_device_error(), fault);
    }
  }
}

// In a list, calls before the failing launch were launched, and none after it.
TEST_F(CudaHost, AListEndsAtTheLaunchThatFails) {
  make();
  const Call a({1, 4096}), b({1, 4096}, FASTNORM_DTYPE_F16, 1),
      c({1, 262144}, FASTNORM_DTYPE_F32, 2);
  const fastnorm_norm_args* const list[] = {&a.args, &b.args, &c.args};
  notes.on_launch = [](const Launch& launch) {
    record(launch);
    if (recorded.size() == 2) machine.failures["cudaLaunchKernelExC"] = cudaErrorInvalidValue;
  };
  EXPECT_EQ(fastnorm_norm_many(context, list, 3, nullptr, 0, kStream), FASTNORM_ERROR_DEVICE);
  EXPECT_EQ(notes.launches, 2);
}

// --- the cost of calls ---

TEST_F(CudaHost, CallsAllocateNothing) {
#if !FASTNORM_COUNTS_ALLOCATIONS
  GTEST_SKIP() << "ThreadSanitizer has an operator new of its own";
#else
  make();
  const Call few({1, 262144}), many({4096, 4096}), q({64, 64, 128}),
      k({64, 8, 128}, FASTNORM_DTYPE_BF16, 1);
  const fastnorm_norm_args* const list[] = {&q.args, &k.args};
  notes.on_launch = nullptr;
  notes.context = primary_context(0);
  const int64_t before = allocations;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(fastnorm_norm(context, &few.args, nullptr, 0, kStream), FASTNORM_OK);
    EXPECT_EQ(fastnorm_norm(context, &many.args, nullptr, 0, kStream), FASTNORM_OK);
    EXPECT_EQ(fastnorm_norm_many(context, list, 2, nullptr, 0, kStream), FASTNORM_OK);
  }
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(notes.launches, 30);
#endif
}

// Host memory runs out at each allocation, one after the other. Nothing stays behind, and the
// context that was current is current again.
TEST_F(CudaHost, PeersWithoutHostMemory) {
#if !FASTNORM_COUNTS_ALLOCATIONS
  GTEST_SKIP() << "ThreadSanitizer has an operator new of its own";
#else
  make();
  holdings = {};
  fastnorm_peer_options options = {};
  options.struct_size = sizeof options;
  options.ranks = 2;
  options.dtype = FASTNORM_DTYPE_BF16;
  options.max_columns = 4096;
  options.rings = 1;
  PeerBlob blobs[2];
  // How often `call` runs out of memory until it succeeds.
  const auto failures_of = [&](auto call) {
    for (int64_t n = 0;; ++n) {
      notes.context = other_context(1);
      allocations_left = n;
      const fastnorm_status status = call();
      allocations_left = -1;
      EXPECT_EQ(notes.context, other_context(1)) << "allocation " << n;
      if (status == FASTNORM_OK) return n;
      EXPECT_EQ(status, FASTNORM_ERROR_OUT_OF_MEMORY) << fastnorm_last_error();
      EXPECT_EQ(holdings.opened, 0) << "allocation " << n;
      if (testing::Test::HasFailure()) return int64_t{0};
    }
  };
  fastnorm_peer *peer = nullptr, *other = nullptr;
  EXPECT_GE(failures_of([&] {
              const fastnorm_status status = fastnorm_peer_create(context, &options, &peer);
              if (status != FASTNORM_OK) {
                EXPECT_EQ(holdings.device_memory + holdings.host_memory + holdings.streams, 0);
              }
              return status;
            }),
            3);
  options.rank = 1;
  ASSERT_EQ(fastnorm_peer_create(context, &options, &other), FASTNORM_OK) << fastnorm_last_error();
  ASSERT_EQ(fastnorm_peer_export(peer, &blobs[0], sizeof blobs[0]), FASTNORM_OK);
  ASSERT_EQ(fastnorm_peer_export(other, &blobs[1], sizeof blobs[1]), FASTNORM_OK);
  blobs[1].process ^= 1;  // as if another process had the second rank
  seal_peer_blob(&blobs[1]);
  EXPECT_GE(failures_of([&] { return fastnorm_peer_import(peer, blobs, sizeof blobs); }), 1);
  fastnorm_peer_destroy(peer);
  fastnorm_peer_destroy(other);
  EXPECT_EQ(holdings.device_memory + holdings.host_memory + holdings.streams + holdings.opened, 0);
#endif
}

// One context used by many threads. Each thread has its own streams and current context.
TEST_F(CudaHost, ThreadsShareAContext) {
  machine.gpus = 2;
  make();
  constexpr int kThreads = 8, kCalls = 500;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      notes = {};
      notes.context = t % 3 == 0 ? nullptr : primary_context(t % 3 - 1);
      void* const before = notes.context;
      void* const stream = reinterpret_cast<void*>(static_cast<uintptr_t>(64 + t));
      static thread_local void* wanted;
      wanted = stream;
      static thread_local int bad;
      bad = 0;
      notes.on_launch = [](const Launch& launch) {
        bad += launch.stream != wanted || launch.context != primary_context(0);
      };
      const Call long_row({1, 131072 + 1024 * (t % 4)}), rows({100 + t, 4096});
      const Call misplaced({4, 64}, FASTNORM_DTYPE_BF16, 0, 1);
      for (int i = 0; i < kCalls; ++i) {
        wrong += fastnorm_norm(context, &long_row.args, nullptr, 0, stream) != FASTNORM_OK;
        wrong += fastnorm_norm(context, &rows.args, nullptr, 0, stream) != FASTNORM_OK;
        // Errors belong to a thread.
        wrong +=
            fastnorm_norm(context, &misplaced.args, nullptr, 0, stream) != FASTNORM_ERROR_DEVICE;
        wrong += std::string(fastnorm_last_error()).find("CUDA:1") == std::string::npos;
        wrong += notes.context != before;
      }
      wrong += bad + static_cast<int>(notes.launches != 2 * kCalls);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace fastnorm::test
