// A parallel loop for the checks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace fastnorm::check {

// Calls fn(i, worker) once for every i of [0, count), on up to `threads` threads.
template <typename Fn>
void parallel_for(int64_t count, int threads, Fn fn) {
  const auto workers = static_cast<int>(std::min<int64_t>(count, threads));
  std::atomic<int64_t> next{0};
  const auto work = [&](int worker) {
    for (int64_t i = next++; i < count; i = next++) fn(i, worker);
  };
  std::vector<std::thread> pool;
  for (int w = 1; w < workers; ++w) pool.emplace_back(work, w);
  work(0);
  for (std::thread& t : pool) t.join();
}

}  // namespace fastnorm::check
