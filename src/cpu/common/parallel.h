// Who works on the ranges of a call: the caller's thread, the caller's parallel loop, or the
// library's pool.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "fastnorm/context.h"

namespace fastnorm::cpu {

// Work on [0, count), in ranges of about `grain` or more.
struct Job {
  fastnorm_range_fn run;
  void* task;
  int64_t count;
  int64_t grain;
};

// Threads that wait for jobs. They start at the first job, spin a few microseconds after each job,
// and then sleep. A job does not wait for sleepers to wake: a late thread finds it done. A forked
// child has no such threads and runs its jobs alone.
class Pool {
 public:
  // `threads` counts the caller.
  explicit Pool(int32_t threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Runs a job on the pool and the calling thread. Runs it on the calling thread alone while the
  // pool works for another thread, after a fork, and on a thread of a pool. Takes no lock.
  void run(const Job& job);

 private:
  static void* worker_main(void* pool);
  void work();
  void start();
  bool join_job(uint64_t seen);
  void leave_job();
  void run_ranges();
  void publish(const Job& job);
  void finish();

  // state_: number of the job << 32 | open << 31 | threads that work on it, without the caller.
  static constexpr uint64_t kOpen = uint64_t{1} << 31;
  static constexpr uint64_t kWorkers = kOpen - 1;

  const int32_t threads_;
  const bool spin_;  // there is a processor for each thread
  std::unique_ptr<pthread_t[]> workers_;
  int32_t started_ = 0;
  uint32_t born_ = 0;  // forks of this process before the workers started

  alignas(64) std::atomic<bool> busy_{false};
  alignas(64) std::atomic<uint64_t> state_{0};
  std::atomic<uint32_t> bell_{0};      // futex of idle workers: counts jobs
  std::atomic<uint32_t> sleepers_{0};  // of the idle workers
  std::atomic<uint32_t> done_{0};      // futex of a caller that waits for the last worker
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<int64_t> next_{0};  // next range to take
  Job job_ = {};
  int64_t ranges_ = 0;
};

}  // namespace fastnorm::cpu
