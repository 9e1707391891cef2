// What benchmarks on the CPU share: memory, threads, a clock, and a loop that copies.
#pragma once

#include <fastnorm/fastnorm.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/devices.h"

namespace bench {

struct Freer {
  void operator()(char* p) const { std::free(p); }
};
using Memory = std::unique_ptr<char, Freer>;

inline Memory allocate(int64_t bytes) {
  const int64_t whole = (bytes + 4095) / 4096 * 4096;
  Memory memory(static_cast<char*>(std::aligned_alloc(4096, static_cast<size_t>(whole))));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

template <typename Body>
double time_us(Body body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

// Runs fn(begin, end) on slices of [0, count), in multiples of `grain`, on `threads` threads.
template <typename Fn>
void on_threads(int threads, int64_t count, int64_t grain, Fn fn) {
  const int64_t slice = (count / threads + grain - 1) / grain * grain;
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) {
    others.emplace_back([=] {
      fn(std::min(count, t * slice), t + 1 == threads ? count : std::min(count, (t + 1) * slice));
    });
  }
  fn(0, threads == 1 ? count : std::min(count, slice));
  for (std::thread& t : others) t.join();
}

// A context of the CPU's, with that many threads.
class CpuContext {
 public:
  explicit CpuContext(int threads);
  ~CpuContext() { fastnorm_context_destroy(context_); }
  CpuContext(const CpuContext&) = delete;
  CpuContext& operator=(const CpuContext&) = delete;

  fastnorm_context* get() const { return context_; }

 private:
  fastnorm_context* context_ = nullptr;
};

// Prints what device it is. The document has that, and the protocol.
nlohmann::json describe_cpu(const Options& options);

// Values near 1 of both signs, of any dtype of rows.
void fill(char* data, int64_t bytes, const std::string& dtype);

// Calls of a sample within caches that touch so many bytes each: so many that the clock's own cost
// is nothing.
inline int calls_of_sample(int64_t bytes) {
  constexpr int64_t kBytes = int64_t{64} << 20, kMost = 8192;
  return static_cast<int>(std::clamp<int64_t>(kBytes / std::max<int64_t>(bytes, 1), 1, kMost));
}

// Copies vector by vector, with a bit of each word flipped, so that no access can be left out; `to`
// may be `from`. `past`: stores go past the caches.
void stream_copy(char* to, const char* from, int64_t bytes, bool past);

// Reads `bytes` of each of 1 to 3 tensors and writes as many, as a backward pass or a gated norm
// does.
void stream_join(char* to, const char* const* from, int reads, int64_t bytes, bool past);

}  // namespace bench
