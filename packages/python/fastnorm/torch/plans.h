// Planned calls of libfastnorm for operators of PyTorch, without headers of either.
//
// A call of the library is planned once. Its key is all that decides the plan: options, and dtypes,
// sizes and strides of tensors. For a key that is new, a function of Python plans the call and
// lends its structs. From then on only the addresses of tensors change. Each thread has plans of
// its own, since a struct is never shared by two.
//
// fastnorm/torch/operators.cpp and packages/python/torch_stable/stable.cpp include this file.
#ifndef FASTNORM_TORCH_PLANS_H_
#define FASTNORM_TORCH_PLANS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace fastnorm_torch {

// --- what Python gives ---

constexpr int kMostTensors = 10;

// A planned call. compiled.py has the same struct.
struct Plan {
  void* context;           // fastnorm_context
  void* args;              // fastnorm_norm_args or fastnorm_norm_backward_args
  int64_t workspace_size;  // bytes, with room to align them
  int64_t by_python;       // 1: the Python operator has to run
  void** data[kMostTensors];
};

using Run = int (*)(void* context, const void* args, void* workspace, size_t size, void* stream);
using StreamOf = int (*)(int32_t device, void** stream);
// Fills in a plan. thread: a number of the calling thread's plans; is_new: it has none yet, and
// whatever was made under its number is free.
using MakePlan = void (*)(int64_t thread, int64_t is_new, const int64_t* key, int64_t words,
                          const int64_t* addresses, Plan* plan);

// A thread has ended: nothing uses its plans.
using EndPlans = void (*)(int64_t thread);

struct Bound {
  Run norm, backward;
  StreamOf stream_of;
  MakePlan make_plan;
  std::atomic<EndPlans> end_plans;  // null where Python ends
};
inline Bound bound;
inline std::atomic<int64_t> runs = 0;  // how often the operators have called the library

// --- keys ---

// Which call of the library; compiled.py has the names of its tensors.
enum class Body : int64_t {
  kRms,
  kLayer,
  kAdd,
  kFusedAdd,
  kRmsStatistics,
  kLayerStatistics,
  kAddStatistics,
  kBackward,
};

// What a call knows of a tensor; one that is not there has -1 dimensions.
struct Form {
  int64_t rank = -1, dtype = 0;
  const int64_t *sizes = nullptr, *strides = nullptr;
};

// All that decides a plan, as numbers.
class Key {
 public:
  static constexpr int kMostWords = 160;

  void add(int64_t word) {
    if (size_ < kMostWords) words_[size_] = word;
    ++size_;
  }
  void add(const Form& t) {
    add(t.rank);
    if (t.rank < 0) return;
    add(t.dtype);
    for (int64_t i = 0; i < t.rank; ++i) add(t.sizes[i]);
    for (int64_t i = 0; i < t.rank; ++i) add(t.strides[i]);
  }
  bool fits() const { return size_ <= kMostWords; }
  const int64_t* data() const { return words_.data(); }
  int64_t size() const { return size_; }
  uint64_t hash() const {
    uint64_t found = 0;
    for (int i = 0; i < size_; ++i) {
      found = (found ^ static_cast<uint64_t>(words_[i])) * 0x9e3779b97f4a7c15u;
      found ^= found >> 29;
    }
    return found;
  }

 private:
  std::array<int64_t, kMostWords> words_;
  int size_ = 0;
};

// --- plans ---

// The plans of one thread.
class Plans {
 public:
  ~Plans() {
    const EndPlans end = bound.end_plans;
    if (count_ > 0 && end != nullptr) end(number());
  }
  // Drops the plans of the CPU, whose contexts have a number of threads, when that changes.
  void follow_threads(int threads) {
    if (threads == threads_) return;
    clear();
    threads_ = threads;
  }
  const Plan& find(const Key& key, const int64_t* addresses) {
    auto& bucket = buckets_[key.hash() % kBuckets];
    for (const auto& entry : bucket) {
      const size_t bytes = static_cast<size_t>(key.size()) * sizeof(int64_t);
      if (entry->key.size() == static_cast<size_t>(key.size()) &&
          std::memcmp(entry->key.data(), key.data(), bytes) == 0) {
        return entry->plan;
      }
    }
    if (count_ == kMost) clear();  // a server with ever new shapes must not fill the memory
    auto made = std::make_unique<Entry>();
    made->key.assign(key.data(), key.data() + key.size());
    bound.make_plan(number(), count_ == 0, key.data(), key.size(), addresses, &made->plan);
    ++count_;
    return buckets_[key.hash() % kBuckets].emplace_back(std::move(made))->plan;
  }

 private:
  static constexpr size_t kBuckets = 512;
  static constexpr int kMost = 4096;
  struct Entry {
    std::vector<int64_t> key;
    Plan plan = {};
  };

  int64_t number() const { return reinterpret_cast<int64_t>(this); }
  void clear() {
    for (auto& bucket : buckets_) bucket.clear();
    count_ = 0;
  }

  std::array<std::vector<std::unique_ptr<Entry>>, kBuckets> buckets_;
  int count_ = 0, threads_ = 0;
};

inline thread_local Plans plans;

// --- calls ---

constexpr size_t kAlignment = 256;  // of a workspace
// A thread keeps so many bytes for calls on the CPU, where a new tensor for each would cost more.
constexpr int64_t kMostKept = int64_t{1} << 18;

inline thread_local std::unique_ptr<std::byte[]> kept;

// The call of this key, whose tensors are at these addresses. device: a GPU's number, or -1 for the
// CPU. allocate(bytes) gives memory that lives until this returns. False: the Python operator has
// to run instead.
template <typename Allocate>
bool run_planned(const Key& key, Body body, int device, const int64_t* addresses, int count,
                 const Allocate& allocate) {
  if (!key.fits()) return false;
  const Plan& plan = plans.find(key, addresses);
  if (plan.by_python) return false;
  for (int i = 0; i < count; ++i) {
    if (plan.data[i] != nullptr) *plan.data[i] = reinterpret_cast<void*>(addresses[i]);
  }
  void* stream = nullptr;
  if (device >= 0 && bound.stream_of(device, &stream) != 0) return false;
  void* workspace = nullptr;
  size_t size = 0;
  if (plan.workspace_size > 0) {
    const bool keep = device < 0 && plan.workspace_size <= kMostKept;
    if (keep && kept == nullptr) kept.reset(new std::byte[kMostKept]);
    void* const memory = keep ? kept.get() : allocate(plan.workspace_size);
    const auto start = reinterpret_cast<uintptr_t>(memory);
    if (start == 0) return false;
    const uintptr_t aligned = (start + kAlignment - 1) / kAlignment * kAlignment;
    workspace = reinterpret_cast<void*>(aligned);
    size = static_cast<size_t>(plan.workspace_size) - (aligned - start);
  }
  runs.fetch_add(1, std::memory_order_relaxed);
  const Run function = body == Body::kBackward ? bound.backward : bound.norm;
  return function(plan.context, plan.args, workspace, size, stream) == 0;
}

}  // namespace fastnorm_torch

#define FASTNORM_TORCH_EXPORTED extern "C" __attribute__((visibility("default")))

#endif  // FASTNORM_TORCH_PLANS_H_
