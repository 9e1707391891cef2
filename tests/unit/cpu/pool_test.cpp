// The pool: every range runs once, in parallel, nested, shared, and after a fork.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "cpu/common/parallel.h"

namespace fastnorm::cpu {
namespace {

using namespace std::chrono_literals;

// Counts how often each element was processed.
struct Counts {
  explicit Counts(int64_t n) : count(static_cast<size_t>(n)) {}

  static void run(void* task, int64_t begin, int64_t end) {
    auto& counts = *static_cast<Counts*>(task);
    for (int64_t i = begin; i < end; ++i)
      counts.count[static_cast<size_t>(i)].fetch_add(1, std::memory_order_relaxed);
  }
  Job job(int64_t grain) { return {run, this, static_cast<int64_t>(count.size()), grain}; }
  bool all_are(int wanted) const {
    for (const std::atomic<int>& c : count) {
      if (c.load() != wanted) return false;
    }
    return true;
  }

  std::vector<std::atomic<int>> count;
};

TEST(Pool, EachElementOnce) {
  for (const int32_t threads : {1, 2, 3, 8}) {
    Pool pool(threads);
    for (const int64_t n : {1, 2, 3, 7, 64, 1000, 4097}) {
      for (const int64_t grain : {1, 2, 10, 5000}) {
        Counts counts(n);
        pool.run(counts.job(grain));
        ASSERT_TRUE(counts.all_are(1)) << threads << " threads, " << n << " by " << grain;
      }
    }
  }
}

TEST(Pool, ManySmallJobs) {
  Pool pool(4);
  Counts counts(64);
  constexpr int kJobs = 3000;
  for (int i = 0; i < kJobs; ++i) pool.run(counts.job(1));
  EXPECT_TRUE(counts.all_are(kJobs));
}

// A range that ends only after another thread has come, so that one thread cannot do the job.
struct Meeting {
  static void run(void* task, int64_t, int64_t) {
    auto& meeting = *static_cast<Meeting*>(task);
    const auto self = std::this_thread::get_id();
    std::thread::id nobody;
    meeting.first.compare_exchange_strong(nobody, self);
    if (meeting.first.load() != self) meeting.met.store(true);
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (!meeting.met.load() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }

  std::atomic<std::thread::id> first{};
  std::atomic<bool> met{false};
};

TEST(Pool, ThreadsWorkAtTheSameTime) {
  Pool pool(2);
  for (int round = 0; round < 2; ++round) {  // the second time the thread sleeps
    Meeting meeting;
    pool.run({Meeting::run, &meeting, 2, 1});
    EXPECT_TRUE(meeting.met.load()) << "round " << round;
    std::this_thread::sleep_for(5ms);
  }
}

TEST(Pool, NestedJobsRunOnTheirOwnThread) {
  struct Nested {
    static void run(void* task, int64_t begin, int64_t end) {
      auto& nested = *static_cast<Nested*>(task);
      for (int64_t i = begin; i < end; ++i) nested.pool->run(nested.counts->job(1));
    }
    Pool* pool;
    Counts* counts;
  };
  Pool pool(3);
  Counts counts(50);
  Nested nested{&pool, &counts};
  pool.run({Nested::run, &nested, 40, 1});
  EXPECT_TRUE(counts.all_are(40));
}

TEST(Pool, SharedByThreads) {
  Pool pool(2);
  constexpr int kThreads = 4, kJobs = 300;
  Counts counts(128);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kJobs; ++i) pool.run(counts.job(4));
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(counts.all_are(kThreads * kJobs));
}

TEST(Pool, TwoPoolsAtOnce) {
  Pool a(2), b(2);
  Counts in_a(256), in_b(256);
  std::thread other([&] {
    for (int i = 0; i < 300; ++i) b.run(in_b.job(8));
  });
  for (int i = 0; i < 300; ++i) a.run(in_a.job(8));
  other.join();
  EXPECT_TRUE(in_a.all_are(300));
  EXPECT_TRUE(in_b.all_are(300));
}

TEST(Pool, ComesAndGoes) {
  for (int i = 0; i < 50; ++i) {
    Pool unused(3);
    Pool used(3);
    Counts counts(64);
    used.run(counts.job(1));
    ASSERT_TRUE(counts.all_are(1));
  }
}

#ifdef FASTNORM_TEST_EMULATED
#define FASTNORM_SKIP_EMULATED GTEST_SKIP() << "the emulator cannot fork a process with threads"
#else
#define FASTNORM_SKIP_EMULATED static_cast<void>(0)
#endif

int exit_code_of_child(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The pool's threads do not exist in the child. Neither jobs nor the pool's end may wait for them.
TEST(Pool, AForkedChildRunsAlone) {
  FASTNORM_SKIP_EMULATED;
  auto pool = std::make_unique<Pool>(3);
  Counts before(64);
  pool->run(before.job(1));
  ASSERT_TRUE(before.all_are(1));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // turns a hang into a signal
    Counts counts(64);
    for (int i = 0; i < 10; ++i) pool->run(counts.job(1));
    pool.reset();
    _exit(counts.all_are(10) ? 0 : 1);
  }
  EXPECT_EQ(exit_code_of_child(child), 0);
  pool->run(before.job(1));
  EXPECT_TRUE(before.all_are(2)) << "the parent goes on";
}

// Forked while the pool works for another thread.
TEST(Pool, AChildOfABusyPoolRunsAlone) {
  FASTNORM_SKIP_EMULATED;
  Pool pool(2);
  std::atomic<bool> stop{false};
  Counts work(256);
  // Its threads start with the first job. A child forked before would start its own, which
  // ThreadSanitizer does not allow.
  pool.run(work.job(1));
  std::thread busy([&] {
    while (!stop.load()) pool.run(work.job(1));
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);
      Counts counts(64);
      pool.run(counts.job(1));
      _exit(counts.all_are(1) ? 0 : 1);
    }
    EXPECT_EQ(exit_code_of_child(child), 0);
  }
  stop.store(true);
  busy.join();
}

}  // namespace
}  // namespace fastnorm::cpu
