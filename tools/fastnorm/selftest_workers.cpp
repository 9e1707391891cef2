#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "progress.h"
#include "selftest.h"

namespace fastnorm::tool {

Workers::Workers(const Machine& machine) : machine_(machine) {
  if (machine.target().is_cuda()) return;
  for (int32_t i = 0; i < machine.threads(); ++i) {
    own_.push_back(std::make_unique<Machine>(machine.target(), 1));
  }
}

void Workers::run(size_t parts, const char* name,
                  const std::function<void(size_t worker, size_t i)>& work) const {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr thrown;
  const auto loop = [&](size_t worker) {
    try {
      for (size_t i = next++; i < parts; i = next++) {
        {
          const std::lock_guard lock(mutex);
          show_progress(i, parts, name);
        }
        work(worker, i);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      thrown = std::current_exception();
      next = parts;
    }
  };
  std::vector<std::thread> others;
  for (size_t worker = 1; worker < count(); ++worker) others.emplace_back(loop, worker);
  loop(0);
  for (std::thread& other : others) other.join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace fastnorm::tool
