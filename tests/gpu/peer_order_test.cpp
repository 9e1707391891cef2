// Calls of peers between kernels of a user that overlap them by programmatic dependent launch. The
// kernel before a call lets it start at once and writes the call's x late; the kernel behind it
// starts when the call lets it, and waits before it copies y. Two ranks, on two GPUs or on one.
#include <gtest/gtest.h>

#include <barrier>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "fastnorm/fastnorm.h"
#include "support/copy_kernel.h"
#include "support/devmem.h"

namespace {

using fastnorm::support::DeviceBuffer;
using fastnorm::support::DeviceStream;
using fastnorm::support::devmem_check;
using fastnorm::support::DevmemError;
using fastnorm::support::DevmemPtr;

constexpr int kRanks = 2;
constexpr uint8_t kOther = 0x3e;  // the bytes of x before the kernel that writes it
constexpr uint32_t kLateNs = 20'000;

struct Case {
  bool sharded;
  int64_t rows, columns;
};
constexpr Case kCases[] = {
    {false, 1, 4096}, {false, 8, 8192}, {false, 200, 4096}, {false, 3, 4100},
    {true, 4, 2048},  {true, 64, 4096}, {true, 700, 1024},
};

void require(fastnorm_status status) {
  if (status != FASTNORM_OK) throw DevmemError(fastnorm_last_error());
}

struct Group {
  Group(bool waits, uint32_t call_flags) : reader_waits(waits), flags(call_flags) {}

  std::barrier<> meet{kRanks};
  unsigned char blobs[kRanks][FASTNORM_PEER_BLOB_BYTES] = {};
  const bool reader_waits;
  const uint32_t flags;  // of the calls
};

// One rank: its device, its peer, and the tensors of one case.
class Rank {
 public:
  Rank(int number, Group& group)
      : number_(number),
        group_(group),
        device_id_(number % devmem_device_count()),
        device_(fastnorm::support::open_devmem(device_id_)),
        stream_(device_) {
    require(fastnorm_context_create({FASTNORM_DEVICE_CUDA, device_id_}, nullptr, &context_));
    fastnorm_peer_options options = {};
    options.struct_size = sizeof options;
    options.rank = number;
    options.ranks = kRanks;
    options.dtype = FASTNORM_DTYPE_BF16;
    options.max_columns = 8192;
    require(fastnorm_peer_create(context_, &options, &peer_));
    require(fastnorm_peer_export(peer_, group.blobs[number], FASTNORM_PEER_BLOB_BYTES));
    group.meet.arrive_and_wait();
    require(fastnorm_peer_import(peer_, group.blobs, sizeof group.blobs));
    devmem_check(devmem_module_load(device_.get(), copy_kernel_ptx, &module_));
    devmem_check(devmem_kernel(device_.get(), module_, "copy", &copy_));
  }
  ~Rank() {
    devmem_stream_synchronize(device_.get(), stream_.get());
    group_.meet.arrive_and_wait();
    fastnorm_peer_destroy(peer_);
    fastnorm_context_destroy(context_);
    devmem_module_unload(device_.get(), module_);
  }

  // How many times of `repeats` the reader found what it must not find. Eager or from a graph.
  int wrong(const Case& c, bool captured, int repeats) {
    place(c);
    const std::vector<std::byte> right = alone();
    void* graph = nullptr;
    if (captured) {
      devmem_check(devmem_capture_begin(device_.get(), stream_.get()));
      overlapped();
      devmem_check(devmem_capture_end(device_.get(), stream_.get(), &graph));
    }
    int found = 0;
    for (int i = 0; i < repeats; ++i) {
      group_.meet.arrive_and_wait();
      if (captured) {
        devmem_check(devmem_graph_launch(device_.get(), graph, stream_.get()));
      } else {
        overlapped();
      }
      found += read(behind_) != right ? 1 : 0;
    }
    if (captured) devmem_check(devmem_graph_destroy(device_.get(), graph));
    return found;
  }

 private:
  void place(const Case& c) {
    case_ = c;
    bytes_ = static_cast<size_t>(c.rows * c.columns) * 2;
    for (DeviceBuffer* b : {&before_, &x_, &y_, &behind_}) *b = DeviceBuffer(device_, bytes_);
    std::vector<uint16_t> values(bytes_ / 2);
    for (size_t i = 0; i < values.size(); ++i)  // bf16 from 1 to 1.99, other ones on each rank
      values[i] =
          static_cast<uint16_t>(0x3f80 + (i * 37 + i / 64 + static_cast<size_t>(number_)) % 128);
    devmem_check(devmem_upload(device_.get(), before_.get(), values.data(), bytes_));
    args_ = {}, norm_ = {}, sharded_ = {};
    x_view_ = view(x_), y_view_ = view(y_);
    norm_.struct_size = sizeof norm_;
    norm_.kind = FASTNORM_NORM_RMS;
    norm_.eps = 1e-6f;
    norm_.flags = group_.flags;
    norm_.x = &x_view_, norm_.y = &y_view_;
    args_.struct_size = sizeof args_;
    args_.peer = peer_;
    args_.norm = &norm_;
    sharded_.struct_size = sizeof sharded_;
    sharded_.peer = peer_;
    sharded_.kind = FASTNORM_NORM_RMS;
    sharded_.eps = 1e-6f;
    sharded_.flags = group_.flags;
    sharded_.x = &x_view_, sharded_.y = &y_view_;
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    if (c.sharded) {
      require(fastnorm_peer_sharded_norm_query(context_, &sharded_, &info));
      require(fastnorm_peer_sharded_norm_prepare(context_, &sharded_));
    } else {
      require(fastnorm_peer_allreduce_norm_query(context_, &args_, &info));
      require(fastnorm_peer_allreduce_norm_prepare(context_, &args_));
    }
    workspace_bytes_ = info.workspace_bytes;
    workspace_ = DeviceBuffer(device_, workspace_bytes_ + 1);
    group_.meet.arrive_and_wait();
  }

  fastnorm_tensor view(const DeviceBuffer& b) {
    fastnorm_tensor t = {};
    t.data = b.get();
    t.device_type = FASTNORM_DEVICE_CUDA;
    t.device_id = device_id_;
    t.ndim = 2;
    t.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_BF16);
    shape_[0] = case_.rows, shape_[1] = case_.columns;
    t.shape = shape_;
    return t;
  }

  void call() {
    require(case_.sharded ? fastnorm_peer_sharded_norm(context_, &sharded_, workspace_.get(),
                                                       workspace_bytes_, stream_.get())
                          : fastnorm_peer_allreduce_norm(context_, &args_, workspace_.get(),
                                                         workspace_bytes_, stream_.get()));
  }

  // What the call gives where nothing overlaps it.
  std::vector<std::byte> alone() {
    devmem_check(devmem_copy(device_.get(), x_.get(), before_.get(), bytes_, stream_.get()));
    devmem_check(devmem_stream_synchronize(device_.get(), stream_.get()));
    call();
    return read(y_);
  }

  void overlapped() {
    devmem_check(devmem_fill(device_.get(), x_.get(), kOther, bytes_, stream_.get()));
    devmem_check(devmem_fill(device_.get(), y_.get(), kOther, bytes_, stream_.get()));
    launch_copy(x_, before_, COPY_TRIGGERS, kLateNs, 0);
    call();
    launch_copy(behind_, y_, group_.reader_waits ? COPY_WAITS : 0, 0, 1);
  }

  void launch_copy(const DeviceBuffer& to, const DeviceBuffer& from, uint32_t options,
                   uint32_t late_ns, int32_t early) {
    constexpr uint32_t kBlocks = 8, kThreads = 1024;
    auto to_number = reinterpret_cast<uint64_t>(to.get());
    auto from_number = reinterpret_cast<uint64_t>(from.get());
    uint64_t count = bytes_, times = 0;
    void* arguments[] = {&to_number, &from_number, &count, &options, &late_ns, &times};
    devmem_check(
        devmem_launch(device_.get(), copy_, kBlocks, kThreads, arguments, early, stream_.get()));
  }

  std::vector<std::byte> read(const DeviceBuffer& from) {
    devmem_check(devmem_stream_synchronize(device_.get(), stream_.get()));
    std::vector<std::byte> bytes(bytes_);
    devmem_check(devmem_download(device_.get(), bytes.data(), from.get(), bytes_));
    return bytes;
  }

  const int number_;
  Group& group_;
  const int32_t device_id_;
  DevmemPtr device_;
  DeviceStream stream_;
  fastnorm_context* context_ = nullptr;
  fastnorm_peer* peer_ = nullptr;
  void *module_ = nullptr, *copy_ = nullptr;
  Case case_ = {};
  size_t bytes_ = 0, workspace_bytes_ = 0;
  int64_t shape_[2] = {};
  DeviceBuffer before_, x_, y_, behind_, workspace_;  // behind: what the reader copied
  fastnorm_tensor x_view_ = {}, y_view_ = {};
  fastnorm_norm_args norm_ = {};
  fastnorm_peer_allreduce_norm_args args_ = {};
  fastnorm_peer_sharded_norm_args sharded_ = {};
};

struct Found {
  int wrong = 0;
  std::string error;
};

// All cases on all ranks, one thread a rank.
Found run(bool reader_waits, uint32_t flags, bool captured, int repeats) {
  Group group(reader_waits, flags);
  Found found[kRanks];
  const auto body = [&](int number) {
    try {
      Rank rank(number, group);
      for (const Case& c : kCases) found[number].wrong += rank.wrong(c, captured, repeats);
    } catch (const std::exception& e) {
      found[number].error = e.what();
      group.meet.arrive_and_drop();
    }
  };
  std::thread other(body, 1);
  body(0);
  other.join();
  return {found[0].wrong + found[1].wrong, found[0].error + found[1].error};
}

const char* why_not() {
  if (devmem_device_count() == 0) return "no GPU";
  fastnorm_device_info info = {};
  info.struct_size = sizeof info;
  if (fastnorm_device_describe({FASTNORM_DEVICE_CUDA, 0}, &info) != FASTNORM_OK) return "no CUDA";
  return info.capability < 90 ? "the GPU has no programmatic dependent launch" : nullptr;
}

class PeerOrder : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (const char* const why = why_not()) GTEST_SKIP() << why;
  }
};

TEST_P(PeerOrder, CallsWaitForTheKernelBeforeAndTheReaderForThem) {
  for (const uint32_t flags : {0u, uint32_t{FASTNORM_NORM_PDL_TRIGGER}}) {
    const Found found = run(true, flags, GetParam(), 20);
    EXPECT_EQ(found.error, "");
    EXPECT_EQ(found.wrong, 0) << "flags " << flags;
  }
}

// Otherwise the test above could not fail. Ranks that share a GPU do not start the next kernel
// early.
TEST_P(PeerOrder, AReaderThatDoesNotWaitIsFound) {
  if (devmem_device_count() < kRanks) GTEST_SKIP() << "no GPU for each rank";
  const Found found = run(false, FASTNORM_NORM_PDL_TRIGGER, GetParam(), 20);
  EXPECT_EQ(found.error, "");
  EXPECT_GT(found.wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Launches, PeerOrder, testing::Bool(),
                         [](const auto& info) { return info.param ? "Captured" : "Eager"; });

}  // namespace
