// Which kernels are faster on a GPU than the library's choice. The library is asked what exists and
// what holds a shape; a measurement, given by the caller, says what is fast.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench_case.h"

namespace fastnorm::tool {

// A file in memory, to make a context from: a thousand on a disk take half a minute.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& text);
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile();

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

// The lines that a tuning file of this library begins with.
std::string tuning_head(const std::string& arch);
// Two lines of it: calls like `c` but of so many rows, up to kAllRows, run on a kernel.
inline constexpr int64_t kAllRows = INT64_MAX;
std::string tuning_rule(int64_t least_rows, int64_t most_rows, const BenchCase& c,
                        const std::string& kernel);

// The words of the KIND line of such a rule, with blanks between: "b16 plain rms own_dtype y
// aligned lean rows"; of a backward pass "many bf16 rms plain".
std::string kind_words(const BenchCase& c, const std::string& kernel);

// The kernel that a case would run on, in a context of `target`.
std::string kernel_of(fastnorm_context* context, const Target& target, const BenchCase& c);

// What kernels that may be measured for the same call have in common: a kernel's name without its
// tile and flavour. Left out is also whether the kernel is for wide rows, and how it loads the
// weights. The library knows which of these a call may have.
std::string kind_of(const std::string& kernel);

// What the library would do on a GPU, without one.
class Planner {
 public:
  // By the kernels that run there, "sm_90": a later GPU's capability may plan for others, which
  // this build need not have.
  explicit Planner(const std::string& kernel_arch);
  // For a GPU that is there: the choice is that of `context`, which knows how many multiprocessors
  // the GPU has.
  Planner(const std::string& kernel_arch, fastnorm_context* context, const Target& target);

  const std::string& arch() const { return arch_; }
  // The kernel that a case runs on.
  std::string choice(const BenchCase& c) const;
  // The kernels of the choice's kind that hold the case's rows, the choice first. For a backward
  // pass all forms.
  std::vector<std::string> kernels(const BenchCase& c) const;

 private:
  Target target_;
  std::string arch_;
  ContextPtr own_context_;
  fastnorm_context* const context_;  // that chooses, for tensors of context_target_
  const Target context_target_;
};

// What was found for a case.
struct Finding {
  BenchCase c;
  std::string choice, best;  // kernels; the same where none is faster by enough
  double choice_us, best_us;
};

// Median microseconds of a case on a kernel; none where the device cannot run it.
using Measure = std::function<std::optional<double>(const std::string& kernel)>;

// Measures the kernels for a case. A kernel is faster than the choice if it takes less than 1 -
// `gain` of its time. It must do so again when both are measured once more.
Finding find_best(const Planner& planner, const BenchCase& c, double gain, const Measure& measure);

// The rules that follow: a measured number of rows stands for all down to the next smaller one that
// was measured. The largest stands for all above, too. `findings` of one op, dtype and n are in the
// order of their rows. Operations of one kind (MXFP8 and blocks of 128 columns), and bf16 and f16,
// have the rules of the first.
std::string tuning_rules(const std::vector<Finding>& findings);

}  // namespace fastnorm::tool
