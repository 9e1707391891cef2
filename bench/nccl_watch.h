// Ends a program that hangs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace bench {

// Ranks that wait for each other may wait for ever. A step that takes too long ends the process
// and is named.
class Watch {
 public:
  explicit Watch(int seconds) : limit_(seconds), thread_([this] { run(); }) {}
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watch(const Watch&) = delete;

  void step(std::string name) {
    {
      const std::lock_guard lock(mutex_);
      name_ = std::move(name);
      begin_ = Clock::now();
    }
    changed_.notify_all();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void run() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      changed_.wait_until(lock, begin_ + limit_);
      if (ends_ || Clock::now() < begin_ + limit_) continue;
      std::printf("%s: no end after %lld s\n", name_.c_str(),
                  static_cast<long long>(limit_.count()));
      std::fflush(stdout);
      std::_Exit(3);
    }
  }

  const std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string name_ = "start";
  Clock::time_point begin_ = Clock::now();
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace bench
