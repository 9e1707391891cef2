// Every call is a meeting of all ranks: they tell where their memory is, compute, and part.
#include "nccl/fake_nccl.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ref/dtype.h"

namespace {

namespace ref = fastnorm::ref;

constexpr int kUint8 = 1, kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9;
constexpr int kInvalidArgument = 4;

struct Group {
  explicit Group(int count) : ranks(count), from(static_cast<size_t>(count)) {}

  void meet() {
    std::unique_lock lock(mutex);
    const uint64_t mine = generation;
    if (++arrived == ranks) {
      arrived = 0;
      ++generation;
      all_here.notify_all();
      return;
    }
    all_here.wait(lock, [&] { return generation != mine; });
  }

  const int ranks;
  std::vector<const std::byte*> from;
  std::mutex mutex;
  std::condition_variable all_here;
  int arrived = 0;
  uint64_t generation = 0;
};

struct Comm {
  std::shared_ptr<Group> group;
  int rank, device;
  int calls[FAKE_OPERATIONS] = {};
  bool fails[FAKE_OPERATIONS] = {};
};

size_t bytes_of(int dtype) {
  switch (dtype) {
    case kUint8:
      return 1;
    case kFloat16:
    case kBfloat16:
      return 2;
    case kFloat32:
      return 4;
    default:
      return 0;
  }
}

ref::Type type_of(int dtype) {
  return dtype == kFloat32   ? ref::Type::kF32
         : dtype == kFloat16 ? ref::Type::kF16
                             : ref::Type::kBF16;
}

float load(int dtype, const std::byte* at) {
  uint32_t bits = 0;  // the low end comes first
  bytes_of(dtype) == 4 ? std::memcpy(&bits, at, 4) : std::memcpy(&bits, at, 2);
  return ref::decode(type_of(dtype), bits);
}

void store(int dtype, float value, std::byte* at) {
  const uint32_t bits = ref::encode(type_of(dtype), value);
  bytes_of(dtype) == 4 ? std::memcpy(at, &bits, 4) : std::memcpy(at, &bits, 2);
}

// Whether the call goes on.
bool begin(Comm& comm, int operation) {
  ++comm.calls[operation];
  const bool fails = comm.fails[operation];
  comm.fails[operation] = false;
  return !fails;
}

// What FAKE_NCCL_FAULT names goes wrong.
bool is_faulty(const char* fault) {
  const char* const named = std::getenv("FAKE_NCCL_FAULT");
  return named != nullptr && std::strcmp(named, fault) == 0;
}

// Operations between this thread's ncclGroupStart and ncclGroupEnd, by communicator.
struct Pending {
  int depth = 0;
  std::map<Comm*, std::vector<std::function<void()>>> operations;
};
thread_local Pending pending;

// Now, or when the thread's group ends.
template <typename Operation>
int run(Comm& comm, Operation operation) {
  if (pending.depth > 0) {
    pending.operations[&comm].emplace_back(operation);
  } else {
    operation();
  }
  return 0;
}

// Elements first, first + 1, .. of the ranks' sum.
void reduce(Comm& comm, const void* from, void* to, size_t first, size_t count, int dtype) {
  Group& group = *comm.group;
  group.from[static_cast<size_t>(comm.rank)] = static_cast<const std::byte*>(from);
  group.meet();
  const size_t bytes = bytes_of(dtype);
  const int ranks = is_faulty("sum") ? group.ranks - 1 : group.ranks;
  std::vector<std::byte> part(count * bytes);
  std::vector<float> totals(count);
  for (int r = 0; r < ranks && count != 0; ++r) {
    // A call of memcpy, so that the address sanitizer sees the range that is read.
    std::memcpy(part.data(), group.from[static_cast<size_t>(r)] + first * bytes, part.size());
    for (size_t i = 0; i < count; ++i) {
      const float value = load(dtype, part.data() + i * bytes);
      totals[i] = r == 0 ? value : totals[i] + value;
    }
  }
  for (size_t i = 0; i < count; ++i) store(dtype, totals[i], part.data() + i * bytes);
  group.meet();
  if (count == 0) return;
  std::memcpy(to, part.data(), part.size());
  if (is_faulty("beyond")) static_cast<std::byte*>(to)[part.size()] = std::byte{1};
}

void gather(Comm& comm, const void* from, void* to, size_t bytes) {
  Group& group = *comm.group;
  group.from[static_cast<size_t>(comm.rank)] = static_cast<const std::byte*>(from);
  group.meet();
  for (int r = 0; r < group.ranks; ++r) {
    std::byte* const at = static_cast<std::byte*>(to) + static_cast<size_t>(r) * bytes;
    const std::byte* const part = group.from[static_cast<size_t>(r)];
    if (at != part && bytes != 0) std::memcpy(at, part, bytes);
  }
  group.meet();
}

}  // namespace

extern "C" {

void fake_nccl_create(int ranks, int device, void** comms) {
  const auto group = std::make_shared<Group>(ranks);
  for (int r = 0; r < ranks; ++r) comms[r] = new Comm{group, r, device};
}
void fake_nccl_destroy(void* const* comms, int ranks) {
  for (int r = 0; r < ranks; ++r) delete static_cast<Comm*>(comms[r]);
}
int fake_nccl_calls(void* comm, int operation) {
  return static_cast<Comm*>(comm)->calls[operation];
}
void fake_nccl_fail(void* comm, int operation) {
  static_cast<Comm*>(comm)->fails[operation] = true;
}

int ncclCommInitAll(void** comms, int ranks, const int*) {
  while (is_faulty("hang")) std::this_thread::sleep_for(std::chrono::seconds(1));
  fake_nccl_create(ranks, 0, comms);
  return 0;
}
int ncclCommDestroy(void* comm) {
  fake_nccl_destroy(&comm, 1);
  return 0;
}
int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
int ncclCommCount(void* comm, int* count) {
  *count = static_cast<Comm*>(comm)->group->ranks;
  return 0;
}
int ncclCommUserRank(void* comm, int* rank) {
  *rank = static_cast<Comm*>(comm)->rank;
  return 0;
}
int ncclCommCuDevice(void* comm, int* device) {
  *device = static_cast<Comm*>(comm)->device;
  return 0;
}
int ncclGroupStart() {
  ++pending.depth;
  return 0;
}
int ncclGroupEnd() {
  if (--pending.depth > 0) return 0;
  // Ranks meet, so that each has a thread.
  std::vector<std::thread> threads;
  for (const auto& of_comm : pending.operations) {
    threads.emplace_back([&of_comm] {
      for (const auto& operation : of_comm.second) operation();
    });
  }
  for (std::thread& thread : threads) thread.join();
  pending.operations.clear();
  return 0;
}
const char* ncclGetErrorString(int result) {
  return result == kInvalidArgument ? "invalid argument" : "unknown";
}

int ncclAllReduce(const void* from, void* to, size_t count, int dtype, int op, void* comm, void*) {
  Comm& c = *static_cast<Comm*>(comm);
  if (!begin(c, FAKE_ALL_REDUCE) || op != 0 || bytes_of(dtype) < 2) return kInvalidArgument;
  return run(c, [=, &c] { reduce(c, from, to, 0, count, dtype); });
}

int ncclReduceScatter(const void* from, void* to, size_t count, int dtype, int op, void* comm,
                      void*) {
  Comm& c = *static_cast<Comm*>(comm);
  if (!begin(c, FAKE_REDUCE_SCATTER) || op != 0 || bytes_of(dtype) < 2) return kInvalidArgument;
  return run(c,
             [=, &c] { reduce(c, from, to, static_cast<size_t>(c.rank) * count, count, dtype); });
}

int ncclAllGather(const void* from, void* to, size_t count, int dtype, void* comm, void*) {
  Comm& c = *static_cast<Comm*>(comm);
  if (!begin(c, FAKE_ALL_GATHER) || bytes_of(dtype) == 0) return kInvalidArgument;
  return run(c, [=, &c] { gather(c, from, to, count * bytes_of(dtype)); });
}
}
