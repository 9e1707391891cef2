// Peers from the C ABI down to what they tell the CUDA runtime, with a runtime that only takes
// notes: its memory is the host's.
#include "fastnorm/peer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/peer/blob.h"
#include "cuda/arch.h"
#include "cuda/families.h"
#include "cuda/peer/params.h"
#include "fastnorm/fastnorm.h"
#include "unit/cuda/pretend_kernels.h"
#include "unit/cuda/pretend_runtime.h"

namespace fastnorm::test {
namespace {

void* const kStream = reinterpret_cast<void*>(uintptr_t{64});
using Blobs = std::vector<PeerBlob>;

// A launch, and a copy of what its kernel got: one of these, if it is none of norms with stages.
struct Recorded {
  Launch launch;
  std::optional<cuda::PeerNormParams> norm;
  std::optional<cuda::PeerSumParams> sum;
  std::optional<cuda::PeerStatisticsParams> statistics;
  std::optional<cuda::PeerShardedParams> sharded;
  std::optional<cuda::NormCallParams> plain;
};
thread_local std::vector<Recorded> recorded;

template <class Params>
void copy(const Launch& launch, std::optional<Params>* to) {
  *to = *static_cast<const Params*>(launch.params);
}

void record(const Launch& launch) {
  Recorded& r = recorded.emplace_back();
  r.launch = launch;
  const PeerEntry* const entry = entry_of<cuda::PeerFamily>(launch.kernel);
  if (entry == nullptr) {  // a norm's, maybe one with stages
    if (entry_of<cuda::NormFamily>(launch.kernel) != nullptr) copy(launch, &r.plain);
    return;
  }
  const PeerVariant& v = entry->variant;
  v.is_fused()                      ? copy(launch, &r.norm)
  : v.form == PeerForm::kSharded    ? copy(launch, &r.sharded)
  : v.form == PeerForm::kStatistics ? copy(launch, &r.statistics)
                                    : copy(launch, &r.sum);
}

fastnorm_peer_options options_of(int32_t rank, int32_t ranks, int32_t rings = 2) {
  fastnorm_peer_options options = {};
  options.struct_size = sizeof options;
  options.rank = rank;
  options.ranks = ranks;
  options.dtype = FASTNORM_DTYPE_BF16;
  options.max_columns = 8192;
  options.rings = rings;
  return options;
}

// Memory of a call, aligned as the library asks for.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : room_(bytes + kAlign) {}
  void* begin() const {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(room_.data()) + kAlign - 1) /
                                   kAlign * kAlign);
  }

 private:
  static constexpr size_t kAlign = 256;
  std::vector<std::byte> room_;
};

class CudaPeer : public testing::Test {
 protected:
  void SetUp() override {
    machine = {};
    machine.gpus = 2;
    holdings = {};
    notes = {};
    notes.on_launch = record;
    recorded.clear();
    for (int32_t gpu = 0; gpu < 2; ++gpu) {
      ASSERT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CUDA, gpu}, nullptr, &contexts[gpu]),
                FASTNORM_OK)
          << fastnorm_last_error();
    }
    notes.loaded.clear();
  }
  void TearDown() override {
    for (fastnorm_context* context : contexts) fastnorm_context_destroy(context);
    EXPECT_EQ(holdings.device_memory, 0);
    EXPECT_EQ(holdings.host_memory, 0);
    EXPECT_EQ(holdings.streams, 0);
    EXPECT_EQ(holdings.opened, 0);
  }

  fastnorm_peer* create(int32_t rank, int32_t ranks = 2) {
    return create_on(rank % 2, options_of(rank, ranks));
  }
  fastnorm_peer* create_on(int gpu, const fastnorm_peer_options& options) {
    fastnorm_peer* peer = nullptr;
    EXPECT_EQ(fastnorm_peer_create(contexts[gpu], &options, &peer), FASTNORM_OK)
        << fastnorm_last_error();
    return peer;
  }
  static PeerBlob blob_of(fastnorm_peer* peer) {
    PeerBlob blob;
    EXPECT_EQ(fastnorm_peer_export(peer, &blob, sizeof blob), FASTNORM_OK);
    return blob;
  }
  static fastnorm_status import(fastnorm_peer* peer, const Blobs& blobs) {
    return fastnorm_peer_import(peer, blobs.data(), blobs.size() * sizeof blobs[0]);
  }
  static fastnorm_peer_state state_of(fastnorm_peer* peer) {
    fastnorm_peer_state state = {};
    state.struct_size = sizeof state;
    EXPECT_EQ(fastnorm_peer_status(peer, &state), FASTNORM_OK) << fastnorm_last_error();
    return state;
  }

  fastnorm_context* contexts[2] = {};
};

// Two ranks of one process on two GPUs.
struct Pair {
  Pair(fastnorm_peer* first, fastnorm_peer* second) : peers{first, second} {}
  ~Pair() {
    for (fastnorm_peer* peer : peers) fastnorm_peer_destroy(peer);
  }
  Pair(const Pair&) = delete;
  fastnorm_peer* peers[2];
};

// [rows, 4096] of bf16.
struct Call {
  Call(fastnorm_peer* peer, int64_t rows) : shape{rows, 4096}, columns{4096} {
    const auto make = [&](fastnorm_tensor* t, int number, int32_t ndim, const int64_t* extents) {
      t->data =
          reinterpret_cast<void*>((uintptr_t{1} << 40) + (static_cast<uintptr_t>(number) << 32));
      t->device_type = FASTNORM_DEVICE_CUDA;
      t->device_id = 0;
      t->ndim = ndim;
      t->dtype = fastnorm_dtype_of(FASTNORM_DTYPE_BF16);
      t->shape = extents;
    };
    make(&x, 0, 2, shape), make(&y, 1, 2, shape), make(&h, 2, 2, shape);
    make(&residual, 3, 2, shape), make(&weight, 4, 1, columns);
    args.struct_size = sizeof args;
    args.peer = peer;
    args.norm = &norm;
    norm.struct_size = sizeof norm;
    norm.eps = 1e-6f;
    norm.x = &x, norm.y = &y, norm.residual = &residual, norm.residual_out = &h;
    norm.weight = &weight;
  }
  Call(const Call&) = delete;

  int64_t shape[2], columns[1];
  fastnorm_tensor x = {}, y = {}, h = {}, residual = {}, weight = {};
  fastnorm_norm_args norm = {};
  fastnorm_peer_allreduce_norm_args args = {};
};

TEST_F(CudaPeer, RanksOfOneProcessReachEachOther) {
  Pair pair(create(0), create(1));
  EXPECT_EQ(holdings.device_memory, 4);  // buffers and counters
  // Kernels are loaded at once: none can be while another rank waits.
  size_t of_dtype = 0;
  for (const PeerEntry& entry : cuda::table_of<cuda::PeerFamily>(cuda::kSm90)) {
    if (entry.variant.dtype == Dtype::kBF16 || entry.variant.form >= PeerForm::kStatistics)
      ++of_dtype;
  }
  EXPECT_EQ(notes.loaded.size(), 2 * of_dtype);
  const Blobs blobs = {blob_of(pair.peers[0]), blob_of(pair.peers[1])};
  EXPECT_EQ(state_of(pair.peers[0]).connected, 0);
  for (fastnorm_peer* peer : pair.peers)
    ASSERT_EQ(import(peer, blobs), FASTNORM_OK) << fastnorm_last_error();
  EXPECT_EQ(holdings.opened, 0);
  const std::vector<std::pair<int, int>> access = {{0, 1}, {1, 0}};
  EXPECT_EQ(holdings.access, access);
  EXPECT_EQ(state_of(pair.peers[0]).connected, 1);
  EXPECT_EQ(import(pair.peers[0], blobs), FASTNORM_ERROR_ARGUMENT);  // once
}

// The last one who can reach a buffer frees it.
TEST_F(CudaPeer, BuffersOutliveTheirPeers) {
  fastnorm_peer* first = create(0);
  fastnorm_peer* second = create(1);
  const Blobs blobs = {blob_of(first), blob_of(second)};
  ASSERT_EQ(import(first, blobs), FASTNORM_OK);
  fastnorm_peer_destroy(second);
  EXPECT_EQ(holdings.device_memory, 3);
  fastnorm_peer_destroy(first);
  EXPECT_EQ(holdings.device_memory, 0);
  fastnorm_peer* third = create(0);
  EXPECT_EQ(import(third, {blob_of(third), blobs[1]}), FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::string(fastnorm_last_error()).find("was destroyed"), std::string::npos);
  fastnorm_peer_destroy(third);
}

// A blob of another process is opened by CUDA IPC, and closed again.
TEST_F(CudaPeer, OtherProcesses) {
  Pair pair(create(0), create(1));
  Blobs blobs = {blob_of(pair.peers[0]), blob_of(pair.peers[1])};
  blobs[1].process ^= 1;
  seal_peer_blob(&blobs[1]);
  machine.failures["cudaIpcOpenMemHandle"] = cudaErrorMapBufferObjectFailed;
  EXPECT_EQ(import(pair.peers[0], blobs), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(fastnorm_last_error()).find("blobs[1] is of another process"),
            std::string::npos)
      << fastnorm_last_error();
  machine.failures.clear();
  ASSERT_EQ(import(pair.peers[0], blobs), FASTNORM_OK) << fastnorm_last_error();
  EXPECT_EQ(holdings.opened, 1);
  EXPECT_TRUE(holdings.access.empty());
  EXPECT_EQ(holdings.opened_since_wait, 1);
  fastnorm_peer_destroy(std::exchange(pair.peers[0], nullptr));
  EXPECT_EQ(holdings.opened, 0);
  EXPECT_EQ(holdings.opened_since_wait, 0) << "a mapping was closed while kernels may use it";
}

TEST_F(CudaPeer, NoIpcIsFineInOneProcess) {
  machine.failures["cudaIpcGetMemHandle"] = cudaErrorInvalidValue;
  Pair pair(create(0), create(1));
  Blobs blobs = {blob_of(pair.peers[0]), blob_of(pair.peers[1])};
  ASSERT_EQ(import(pair.peers[0], blobs), FASTNORM_OK) << fastnorm_last_error();
  blobs[0].process ^= 1;
  seal_peer_blob(&blobs[0]);
  EXPECT_EQ(import(pair.peers[1], blobs), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(fastnorm_last_error()).find("CUDA IPC does not work"), std::string::npos)
      << fastnorm_last_error();
}

TEST_F(CudaPeer, GpusApart) {
  machine.reaches = false;
  Pair pair(create(0), create(1));
  const Blobs blobs = {blob_of(pair.peers[0]), blob_of(pair.peers[1])};
  EXPECT_EQ(import(pair.peers[1], blobs), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(fastnorm_last_error()).find("device 1 cannot reach the memory of device 0"),
            std::string::npos)
      << fastnorm_last_error();
  EXPECT_EQ(state_of(pair.peers[1]).connected, 0);
}

// Whatever fails, nothing stays behind (TearDown looks) and the runtime's code is kept.
TEST_F(CudaPeer, FailuresLeaveNothing) {
  const fastnorm_peer_options options = options_of(0, 2);
  for (const char* name :
       {"cudaMalloc", "cudaHostAlloc", "cudaStreamCreateWithFlags", "cudaHostGetDevicePointer",
        "cudaMemsetAsync", "cudaStreamSynchronize", "cudaFuncGetAttributes"}) {
    machine.failures = {{name, cudaErrorMemoryAllocation}};
    fastnorm_peer* peer = nullptr;
    EXPECT_EQ(fastnorm_peer_create(contexts[0], &options, &peer), FASTNORM_ERROR_OUT_OF_MEMORY)
        << name;
    EXPECT_EQ(peer, nullptr);
    EXPECT_EQ(holdings.device_memory + holdings.host_memory + holdings.streams, 0) << name;
  }
  machine.failures.clear();
}

TEST_F(CudaPeer, OneKernelForAlignedRows) {
  Pair pair(create(0), create(1));
  const Blobs blobs = {blob_of(pair.peers[0]), blob_of(pair.peers[1])};
  Call call(pair.peers[0], 3);
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(fastnorm_peer_allreduce_norm_query(contexts[0], &call.args, &info), FASTNORM_OK)
      << fastnorm_last_error();
  EXPECT_STREQ(info.kernel, "peer bf16 one-shot rms store 512x1 by 1 lean");
  EXPECT_EQ(info.workspace_bytes, 0u);
  EXPECT_EQ(info.launches, 1);
  EXPECT_EQ(info.blocks, 2u);
  // Not yet connected.
  EXPECT_EQ(fastnorm_peer_allreduce_norm(contexts[0], &call.args, nullptr, 0, kStream),
            FASTNORM_ERROR_ARGUMENT);
  EXPECT_TRUE(recorded.empty());
  ASSERT_EQ(import(pair.peers[0], blobs), FASTNORM_OK);
  ASSERT_EQ(fastnorm_peer_allreduce_norm(contexts[0], &call.args, nullptr, 0, kStream), FASTNORM_OK)
      << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  const Launch& launch = recorded[0].launch;
  ASSERT_TRUE(recorded[0].norm);
  EXPECT_EQ(launch.grid.x, 2u);
  EXPECT_EQ(launch.block.x, 512u);
  EXPECT_EQ(launch.early, 1);
  EXPECT_EQ(launch.stream, kStream);
  EXPECT_EQ(launch.context, primary_context(0));
  const cuda::PeerExchange& e = recorded[0].norm->peer;
  EXPECT_EQ(e.rank, 0);
  EXPECT_EQ(e.ranks, 2);
  EXPECT_EQ(e.rings, 2);
  EXPECT_EQ(e.rows, 3u);
  EXPECT_EQ(e.columns, 4096u);
  EXPECT_EQ(e.wait_ns, 10'000'000'000u);
  EXPECT_NE(e.buffer[0], e.buffer[1]);
  EXPECT_EQ(recorded[0].norm->norm.x.data, static_cast<char*>(call.x.data));
  // The next kernel might take the room that another rank needs.
  EXPECT_EQ(recorded[0].norm->norm.bits & cuda::kTrigger, 0u);
  call.norm.flags = FASTNORM_NORM_PDL_TRIGGER;
  ASSERT_EQ(fastnorm_peer_allreduce_norm(contexts[0], &call.args, nullptr, 0, kStream),
            FASTNORM_OK);
  EXPECT_EQ(recorded[1].launch.early, 1);
  EXPECT_NE(recorded[1].norm->norm.bits & cuda::kTrigger, 0u);
  call.norm.flags = FASTNORM_NORM_NO_PDL;
  ASSERT_EQ(fastnorm_peer_allreduce_norm(contexts[0], &call.args, nullptr, 0, kStream),
            FASTNORM_OK);
  EXPECT_EQ(recorded[2].launch.early, -1);
  EXPECT_EQ(recorded[2].norm->norm.bits & cuda::kTrigger, 0u);
}

// A cluster for each row, where each has a ring.
TEST_F(CudaPeer, ClustersForFewRows) {
  Pair pair(create_on(0, options_of(0, 2, 8)), create_on(1, options_of(1, 2, 8)));
  const Blobs blobs = {blob_of(pair.peers[0]), blob_of(pair.peers[1])};
  ASSERT_EQ(import(pair.peers[0], blobs), FASTNORM_OK);
  Call call(pair.peers[0], 3);
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(fastnorm_peer_allreduce_norm_query(contexts[0], &call.args, &info), FASTNORM_OK);
  EXPECT_STREQ(info.kernel, "peer bf16 one-shot rms store 128x1x4 by 1 lean");
  EXPECT_EQ(info.blocks, 12u);
  EXPECT_EQ(info.blocks_per_row, 4);
  ASSERT_EQ(fastnorm_peer_allreduce_norm(contexts[0], &call.args, nullptr, 0, kStream), FASTNORM_OK)
      << fastnorm_last_error();
  EXPECT_EQ(recorded[0].launch.grid.x, 12u);
  EXPECT_EQ(recorded[0].launch.block.x, 128u);
  EXPECT_EQ(recorded[0].launch.cluster, 4u);
  EXPECT_EQ(recorded[0].norm->peer.rings, 3);
}

// Blocks of all ranks of a GPU have to be there together: fewer rings, no clusters, and no next
// kernel that starts early.
TEST_F(CudaPeer, RanksThatShareAGpu) {
  machine.multiprocessors = 14;
  fastnorm_context* small = nullptr;
  ASSERT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CUDA, 0}, nullptr, &small), FASTNORM_OK);
  std::swap(small, contexts[0]);
  {
    Pair pair(create_on(0, options_of(0, 2, 256)), create_on(0, options_of(1, 2, 256)));
    const Blobs blobs = {blob_of(pair.peers[0]), blob_of(pair.peers[1])};
    EXPECT_EQ(blobs[0].gpu, blobs[1].gpu);
    ASSERT_EQ(import(pair.peers[0], blobs), FASTNORM_OK);
    for (const int64_t rows : {3, 200}) {
      recorded.clear();
      Call call(pair.peers[0], rows);
      call.norm.flags = FASTNORM_NORM_PDL_TRIGGER;
      ASSERT_EQ(fastnorm_peer_allreduce_norm(contexts[0], &call.args, nullptr, 0, kStream),
                FASTNORM_OK)
          << fastnorm_last_error();
      ASSERT_EQ(recorded.size(), 1u);
      EXPECT_EQ(recorded[0].launch.block.x, 512u);
      EXPECT_EQ(recorded[0].launch.grid.x, rows == 3 ? 3u : 7u);
      EXPECT_EQ(recorded[0].norm->peer.all_rings, 256);
      EXPECT_EQ(recorded[0].norm->norm.bits & cuda::kTrigger, 0u);
      EXPECT_EQ(recorded[0].norm->norm.bits_again & cuda::kTrigger, 0u);
    }
  }
  std::swap(small, contexts[0]);
  fastnorm_context_destroy(small);
}

// Rows that a fused kernel does not take: an exchange into the workspace, then the norm's kernel.
TEST_F(CudaPeer, TwoKernelsForOthers) {
  Pair pair(create(0), create(1));
  const Blobs blobs = {blob_of(pair.peers[0]), blob_of(pair.peers[1])};
  ASSERT_EQ(import(pair.peers[0], blobs), FASTNORM_OK);
  const Workspace room(3 * 4096 * 4 + 4096 * 2);
  void* const workspace = room.begin();
  Call call(pair.peers[0], 3);
  call.args.sum_rounding = FASTNORM_PEER_SUM_EXACT;
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(fastnorm_peer_allreduce_norm_query(contexts[0], &call.args, &info), FASTNORM_OK);
  EXPECT_EQ(info.launches, 2);
  EXPECT_EQ(info.workspace_bytes, 3u * 4096 * 4 + 4096 * 2);
  ASSERT_EQ(fastnorm_peer_allreduce_norm(contexts[0], &call.args, workspace, info.workspace_bytes,
                                         kStream),
            FASTNORM_OK)
      << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 2u);
  ASSERT_TRUE(recorded[0].sum);
  EXPECT_EQ(recorded[0].sum->totals, static_cast<char*>(workspace));
  EXPECT_EQ(recorded[0].sum->minus_zeros, static_cast<char*>(workspace) + 3 * 4096 * 4);
  EXPECT_EQ(recorded[0].sum->exact, 1u);
  EXPECT_EQ(recorded[0].launch.early, 1);
  ASSERT_TRUE(recorded[1].plain);
  EXPECT_EQ(recorded[1].launch.early, 1);  // it waits for the exchange itself
  EXPECT_EQ(recorded[1].launch.stream, kStream);
  call.norm.flags = FASTNORM_NORM_NO_PDL;
  ASSERT_EQ(fastnorm_peer_allreduce_norm(contexts[0], &call.args, workspace, info.workspace_bytes,
                                         kStream),
            FASTNORM_OK);
  EXPECT_EQ(recorded[2].launch.early, -1);
  EXPECT_EQ(recorded[3].launch.early, 1) << "the kernels of a call follow each other early";
}

// The indices of a row, as kernels find them.
struct Index {
  Index(const cuda::NormParams& p, uint32_t row) : digit{row, 0, 0} {
    if ((p.bits & cuda::kSingleIndex) != 0) return;
    const uint32_t first = p.outer[0].value;
    const uint32_t second = (p.bits & cuda::kThreeIndices) != 0 ? p.outer[1].value : ~0u;
    digit[0] = row % first, digit[1] = row / first % second, digit[2] = row / first / second;
  }
  int64_t offset(int64_t stride, const cuda::RowStrides& upper) const {
    return digit[0] * stride + digit[1] * upper.stride[0] + digit[2] * upper.stride[1];
  }
  uint32_t digit[3];
};

// The name of a kernel of the norm.
std::string kernel_name(const void* kernel) {
  const std::span<const NormEntry> table = cuda::table_of<cuda::NormFamily>(cuda::kSm90);
  for (size_t i = 0; i < table.size(); ++i) {
    if (kernel_address(static_cast<int32_t>(i)) == kernel) return table[i].name;
  }
  return "none";
}

// The weight's strides beyond the first index. Only kernels of any layout read them, and for others
// nothing sets them.
cuda::RowStrides weight_upper_of(const Recorded& r) {
  const std::span<const NormEntry> table = cuda::table_of<cuda::NormFamily>(cuda::kSm90);
  for (size_t i = 0; i < table.size(); ++i) {
    if (kernel_address(static_cast<int32_t>(i)) == r.launch.kernel)
      return table[i].key.access == Access::kAny ? r.plain->weight_upper : cuda::RowStrides{};
  }
  ADD_FAILURE() << "no kernel of the norm";
  return {};
}

// x [2, 3, 4096] and weight [2, 1, 4096]: the norm's kernel may take rows in another order, and the
// exchange may not. All ranks' messages have the rows of x's shape, whatever their weights are.
TEST_F(CudaPeer, SumsAreInTheOrderOfX) {
  Pair pair(create(0), create(1));
  ASSERT_EQ(import(pair.peers[0], {blob_of(pair.peers[0]), blob_of(pair.peers[1])}), FASTNORM_OK);
  constexpr int64_t kRow = 4096 * 2;
  const int64_t shape[3] = {2, 3, 4096}, of_weight[3] = {2, 1, 4096};
  for (const auto rounding : {FASTNORM_PEER_SUM_EXACT, FASTNORM_PEER_SUM_ROUNDED}) {
    for (const bool added : {false, true}) {
      const std::string name = std::to_string(rounding) + (added ? " with a residual" : "");
      Call call(pair.peers[0], 6);
      for (fastnorm_tensor* t : {&call.x, &call.y, &call.h, &call.residual, &call.weight}) {
        t->ndim = 3;
        t->shape = t == &call.weight ? of_weight : shape;
      }
      call.args.sum_rounding = rounding;
      if (!added) call.norm.residual = call.norm.residual_out = nullptr;
      fastnorm_info info = {};
      info.struct_size = sizeof info;
      ASSERT_EQ(fastnorm_peer_allreduce_norm_query(contexts[0], &call.args, &info), FASTNORM_OK)
          << fastnorm_last_error();
      const Workspace room(info.workspace_bytes);
      void* const workspace = room.begin();
      recorded.clear();
      ASSERT_EQ(fastnorm_peer_allreduce_norm(contexts[0], &call.args, workspace,
                                             info.workspace_bytes, kStream),
                FASTNORM_OK)
          << fastnorm_last_error();
      ASSERT_EQ(recorded.size(), 2u) << name;
      ASSERT_TRUE(recorded[0].sum) << name;
      ASSERT_TRUE(recorded[1].plain) << name;
      const cuda::PeerSumParams& sum = *recorded[0].sum;
      EXPECT_EQ(sum.totals, workspace);
      const bool exact = rounding == FASTNORM_PEER_SUM_EXACT;
      const cuda::NormCallParams& norm = *recorded[1].plain;
      const cuda::RowRef& totals = exact ? norm.residual : norm.x;
      const cuda::RowStrides& upper = exact ? norm.residual_upper : norm.x_upper;
      EXPECT_EQ(totals.data, workspace) << name;
      std::vector<bool> seen(6);
      for (uint32_t r = 0; r < 6; ++r) {
        const Index sent(sum.norm, r);
        EXPECT_EQ(sent.offset(sum.norm.x.stride, sum.norm.x_upper), r * kRow) << name << " " << r;
        if (exact && added) {
          EXPECT_EQ(sent.offset(sum.norm.residual.stride, sum.norm.residual_upper), r * kRow)
              << name << " " << r;
        }
        const Index index(norm, r);
        const int64_t bytes = kRow * (exact ? 2 : 1);
        const int64_t offset = index.offset(totals.stride, upper), row = offset / bytes;
        EXPECT_EQ(offset % bytes, 0);
        ASSERT_TRUE(row >= 0 && row < 6 && !seen[static_cast<size_t>(row)]) << name << " " << r;
        seen[static_cast<size_t>(row)] = true;
        EXPECT_EQ(index.offset(norm.y.stride, norm.y_upper), row * kRow) << name << " " << r;
        EXPECT_EQ(index.offset(norm.weight_head_stride, weight_upper_of(recorded[1])),
                  row / 3 * kRow)
            << name << " " << r;
      }
    }
  }
}

// A query names the norm's kernel that a call runs, and counts its blocks; prepare loads it.
TEST_F(CudaPeer, TheKernelsThatWereNamedAndLoadedRun) {
  Pair pair(create(0), create(1));
  ASSERT_EQ(import(pair.peers[0], {blob_of(pair.peers[0]), blob_of(pair.peers[1])}), FASTNORM_OK);
  for (const auto rounding : {FASTNORM_PEER_SUM_ROUNDED, FASTNORM_PEER_SUM_EXACT}) {
    for (const bool added : {false, true}) {
      for (const bool keeps : {false, true}) {
        if (keeps && !added) continue;
        const std::string name = std::to_string(rounding) + (added ? " with a residual" : "") +
                                 (keeps ? " that is kept" : "");
        Call call(pair.peers[0], 3);
        call.x.byte_offset = 2;  // rows that no fused kernel takes
        call.args.sum_rounding = rounding;
        call.norm.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS;
        if (!added) call.norm.residual = nullptr;
        if (!keeps) call.norm.residual_out = nullptr;
        fastnorm_info info = {};
        info.struct_size = sizeof info;
        ASSERT_EQ(fastnorm_peer_allreduce_norm_query(contexts[0], &call.args, &info), FASTNORM_OK)
            << fastnorm_last_error();
        notes.loaded.clear();
        ASSERT_EQ(fastnorm_peer_allreduce_norm_prepare(contexts[0], &call.args), FASTNORM_OK)
            << fastnorm_last_error();
        const std::vector<const void*> loaded = notes.loaded;
        const Workspace room(info.workspace_bytes);
        void* const workspace = room.begin();
        recorded.clear();
        ASSERT_EQ(fastnorm_peer_allreduce_norm(contexts[0], &call.args, workspace,
                                               info.workspace_bytes, kStream),
                  FASTNORM_OK)
            << fastnorm_last_error();
        ASSERT_EQ(recorded.size(), 2u) << name;
        EXPECT_EQ(info.launches, 2) << name;
        const void* const kernel = recorded[1].launch.kernel;
        EXPECT_EQ(kernel_name(kernel), info.kernel) << name;
        EXPECT_TRUE(std::find(loaded.begin(), loaded.end(), kernel) != loaded.end()) << name;
        uint64_t blocks = 0;
        for (const Recorded& r : recorded) blocks += uint64_t{r.launch.grid.x} * r.launch.grid.y;
        EXPECT_EQ(info.blocks, blocks) << name;
      }
    }
  }
}

// Few tokens: sums, exchange and y in one kernel, which takes the flags of dependent launches.
TEST_F(CudaPeer, ShardedNormOfFewTokens) {
  Pair pair(create(0), create(1));
  const Blobs blobs = {blob_of(pair.peers[0]), blob_of(pair.peers[1])};
  ASSERT_EQ(import(pair.peers[0], blobs), FASTNORM_OK);
  Call call(pair.peers[0], 5);
  fastnorm_peer_sharded_norm_args args = {};
  args.struct_size = sizeof args;
  args.peer = pair.peers[0];
  args.weight_offset = 1;
  args.x = &call.x, args.y = &call.y, args.weight = &call.weight;
  args.flags =
      FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER | FASTNORM_NORM_PDL_CONSTANT_WEIGHTS;
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(fastnorm_peer_sharded_norm_query(contexts[0], &args, &info), FASTNORM_OK)
      << fastnorm_last_error();
  EXPECT_STREQ(info.kernel, "peer bf16 sharded 512x1");
  EXPECT_EQ(info.launches, 1);
  EXPECT_EQ(info.blocks, 2u);
  EXPECT_EQ(info.workspace_bytes, 0u);
  EXPECT_EQ(info.bytes_read, 5u * 4096 * 2 + 4096 * 2);
  EXPECT_EQ(info.bytes_written, 5u * 4096 * 2);
  ASSERT_EQ(fastnorm_peer_sharded_norm_prepare(contexts[0], &args), FASTNORM_OK);
  ASSERT_EQ(fastnorm_peer_sharded_norm(contexts[0], &args, nullptr, 0, kStream), FASTNORM_OK)
      << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 1u);
  const Launch& launch = recorded[0].launch;
  ASSERT_TRUE(recorded[0].sharded);
  EXPECT_EQ(launch.grid.x, 2u);
  EXPECT_EQ(launch.block.x, 512u);
  EXPECT_EQ(launch.early, 1);
  EXPECT_EQ(launch.stream, kStream);
  const cuda::PeerShardedParams& p = *recorded[0].sharded;
  EXPECT_EQ(p.bits, cuda::kWaitAfterWeights | cuda::kTrigger);
  EXPECT_EQ(p.weight_offset, 1.0f);
  EXPECT_EQ(p.part[0].x, static_cast<char*>(call.x.data));
  EXPECT_EQ(p.part[0].x_token, 8192);
  EXPECT_EQ(p.part[0].y_token, 8192);
  EXPECT_EQ(p.part[0].vectors, 512);
  EXPECT_EQ(p.part[0].by_head.value, 512u);
  EXPECT_EQ(p.part[0].weight_type, cuda::OperandType::kElement);
  EXPECT_EQ(p.part[0].bias_type, cuda::OperandType::kAbsent);
  EXPECT_EQ(p.part[1].vectors, 0);
  EXPECT_EQ(p.statistics.tokens, 5);
  EXPECT_EQ(p.statistics.inverse[0], 1.0f / 8192);
  EXPECT_EQ(p.statistics.peer.columns, 4096u);
  // By default it waits, and the kernel behind it starts when it has ended.
  for (const uint32_t flags : {0u, uint32_t{FASTNORM_NORM_NO_PDL}}) {
    args.flags = flags;
    ASSERT_EQ(fastnorm_peer_sharded_norm(contexts[0], &args, nullptr, 0, kStream), FASTNORM_OK);
    EXPECT_EQ(recorded.back().launch.early, flags == 0 ? 1 : -1);
    EXPECT_EQ(recorded.back().sharded->bits, 0u);
  }
  args.flags = 0;
  // A misaligned row needs the general kernels.
  call.x.byte_offset = 2;
  ASSERT_EQ(fastnorm_peer_sharded_norm_query(contexts[0], &args, &info), FASTNORM_OK);
  EXPECT_EQ(info.launches, 3);
  EXPECT_GT(info.workspace_bytes, 0u);
}

TEST_F(CudaPeer, ShardedNorm) {
  Pair pair(create(0), create(1));
  const Blobs blobs = {blob_of(pair.peers[0]), blob_of(pair.peers[1])};
  ASSERT_EQ(import(pair.peers[0], blobs), FASTNORM_OK);
  Call call(pair.peers[0], 257);
  fastnorm_peer_sharded_norm_args args = {};
  args.struct_size = sizeof args;
  args.peer = pair.peers[0];
  args.kind = FASTNORM_NORM_LAYER;
  args.x = &call.x, args.y = &call.y;
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(fastnorm_peer_sharded_norm_query(contexts[0], &args, &info), FASTNORM_OK)
      << fastnorm_last_error();
  EXPECT_EQ(info.launches, 3);
  const Workspace room(info.workspace_bytes);
  void* const workspace = room.begin();
  ASSERT_EQ(
      fastnorm_peer_sharded_norm(contexts[0], &args, workspace, info.workspace_bytes, kStream),
      FASTNORM_OK)
      << fastnorm_last_error();
  ASSERT_EQ(recorded.size(), 3u);
  ASSERT_TRUE(recorded[1].statistics);
  const cuda::PeerStatisticsParams& p = *recorded[1].statistics;
  EXPECT_EQ(p.tokens, 257);
  EXPECT_EQ(p.parts, 1);
  EXPECT_EQ(p.layer, 1u);
  EXPECT_EQ(p.share[0][1], 2048.0f);
  EXPECT_EQ(p.next[1], 0.5f);
  EXPECT_EQ(p.inverse[0], 1.0f / 8192);
  uint64_t blocks = 0;
  for (const Recorded& r : recorded) {
    EXPECT_EQ(r.launch.stream, kStream);
    blocks += uint64_t{r.launch.grid.x} * r.launch.grid.y;
  }
  EXPECT_EQ(recorded[1].launch.grid.x, 1u);  // a thread for each ring
  EXPECT_EQ(info.blocks, blocks);
}

// What a kernel reports stops the peer until it is reset.
TEST_F(CudaPeer, StoppedAndReset) {
  Pair pair(create(0), create(1));
  const Blobs blobs = {blob_of(pair.peers[0]), blob_of(pair.peers[1])};
  ASSERT_EQ(import(pair.peers[0], blobs), FASTNORM_OK);
  Call call(pair.peers[0], 1);
  const auto run = [&] {
    return fastnorm_peer_allreduce_norm(contexts[0], &call.args, nullptr, 0, kStream);
  };
  ASSERT_EQ(run(), FASTNORM_OK);
  const cuda::PeerExchange e = recorded[0].norm->peer;
  e.control->calls = 1;
  EXPECT_EQ(state_of(pair.peers[0]).calls, 1u);
  EXPECT_EQ(state_of(pair.peers[0]).error, FASTNORM_PEER_ERROR_NONE);
  EXPECT_EQ(state_of(pair.peers[0]).rank, -1);
  *e.report = e.control->stopped = FASTNORM_PEER_ERROR_MISSING | 2 << 8;
  EXPECT_EQ(state_of(pair.peers[0]).error, FASTNORM_PEER_ERROR_MISSING);
  EXPECT_EQ(state_of(pair.peers[0]).rank, 1);
  EXPECT_EQ(run(), FASTNORM_ERROR_DEVICE);
  EXPECT_NE(std::string(fastnorm_last_error()).find("rank 1 was missing"), std::string::npos);
  EXPECT_EQ(recorded.size(), 1u);
  std::memset(e.buffer[0], 0, 64);
  e.control->number[0][0] = 9;
  ASSERT_EQ(fastnorm_peer_reset(pair.peers[0]), FASTNORM_OK);
  uint32_t word = 0;
  std::memcpy(&word, e.buffer[0], 4);
  EXPECT_EQ(word, kPeerEmpty);
  EXPECT_EQ(e.control->number[0][0], 0u);
  EXPECT_EQ(state_of(pair.peers[0]).calls, 0u);
  EXPECT_EQ(run(), FASTNORM_OK);
}

TEST_F(CudaPeer, BuffersOfTheCallers) {
  fastnorm_peer_options options = options_of(0, 2);
  uint64_t bytes = 0;
  ASSERT_EQ(fastnorm_peer_buffer_bytes(contexts[0], &options, &bytes), FASTNORM_OK);
  std::vector<char> memory(2 * bytes + 512);
  char* const first =
      reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 * 256);
  void* const buffers[2] = {first, first + (bytes + 255) / 256 * 256};
  fastnorm_peer* peer = nullptr;
  ASSERT_EQ(fastnorm_peer_create_from_pointers(contexts[0], &options, buffers, 2, &peer),
            FASTNORM_OK)
      << fastnorm_last_error();
  EXPECT_EQ(state_of(peer).connected, 1);
  EXPECT_EQ(static_cast<unsigned char>(first[bytes - 1]), 0xff);
  PeerBlob blob;
  EXPECT_EQ(fastnorm_peer_export(peer, &blob, sizeof blob), FASTNORM_ERROR_ARGUMENT);
  fastnorm_peer_destroy(peer);
}

}  // namespace
}  // namespace fastnorm::test
