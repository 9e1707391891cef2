// How far a command is, as a line on a terminal's stderr. Nothing where stderr goes elsewhere, or
// to a terminal that cannot erase a line.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>

namespace fastnorm::tool {

// Part `done` + 1 of `all` begins, in place of the line before.
void show_progress(size_t done, size_t all, const std::string& what);
// Sample `done` + 1 of `all` of the part begins; the line tells it when it is next drawn.
void show_sample(size_t done, size_t all);
// The line is gone until the next part begins: to be called before something is printed.
void clear_progress();

// While it lives, whatever takes more than two seconds has a line, which tells the seconds.
class ProgressLine {
 public:
  explicit ProgressLine(std::string command);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine();

 private:
  void draw_each_second();

  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace fastnorm::tool
