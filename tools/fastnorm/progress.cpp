#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>

namespace fastnorm::tool {
namespace {

using Clock = std::chrono::steady_clock;

struct Line {
  std::mutex mutex;
  std::string what;  // empty: nothing is shown
  bool drawn = false;
  std::atomic<size_t> sample{0}, samples{0};
  Clock::time_point begin = Clock::now();
};

Line& line() {
  static Line the_line;
  return the_line;
}

bool takes_lines() {
  static const bool takes = [] {
    const char* const terminal = std::getenv("TERM");
    return isatty(STDERR_FILENO) != 0 && (terminal == nullptr || std::string(terminal) != "dumb");
  }();
  return takes;
}

size_t width() {
  winsize size = {};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col - 1u : 79;
}

// Not by stdio: a fork() must not find a lock of it held.
void write_all(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = write(STDERR_FILENO, text.data() + at, text.size() - at);
    if (written <= 0) return;
    at += static_cast<size_t>(written);
  }
}

// The caller holds the mutex.
void draw(Line& l, bool with_seconds) {
  std::string text = l.what;
  if (const size_t all = l.samples; all != 0)
    text += ", sample " + std::to_string(l.sample + 1) + " of " + std::to_string(all);
  if (with_seconds) {
    const auto taken = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - l.begin);
    text += ", " + std::to_string(taken.count()) + " s";
  }
  write_all("\r\033[K" + text.substr(0, width()));
  l.drawn = true;
}

}  // namespace

void show_progress(size_t done, size_t all, const std::string& what) {
  if (!takes_lines()) return;
  Line& l = line();
  const std::lock_guard lock(l.mutex);
  l.what = std::to_string(done + 1) + "/" + std::to_string(all) + " " + what;
  l.samples = 0;
  draw(l, false);
}

void show_sample(size_t done, size_t all) {
  line().sample = done;
  line().samples = all;
}

void clear_progress() {
  if (!takes_lines()) return;
  Line& l = line();
  const std::lock_guard lock(l.mutex);
  l.what.clear();
  l.samples = 0;
  if (l.drawn) write_all("\r\033[K");
  l.drawn = false;
}

ProgressLine::ProgressLine(std::string command) {
  if (!takes_lines()) return;
  line().what = std::move(command);
  thread_ = std::thread([this] { draw_each_second(); });
}

void ProgressLine::draw_each_second() {
  auto next = line().begin + std::chrono::seconds(2);
  std::unique_lock lock(mutex_);
  while (!ended_.wait_until(lock, next, [this] { return end_; })) {
    next += std::chrono::seconds(1);
    Line& l = line();
    const std::lock_guard drawing(l.mutex);
    if (!l.what.empty()) draw(l, true);
  }
}

ProgressLine::~ProgressLine() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      end_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }
  clear_progress();
}

}  // namespace fastnorm::tool
