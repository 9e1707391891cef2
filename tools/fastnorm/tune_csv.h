// The file of "fastnorm tune --csv": the time of every kernel on every shape, a line each. A run
// that stopped goes on where its file ends.
//
// Columns, in order (docs/kernels.md says the same):
//   device, driver, library, numeric_version: of the run; all lines of a file agree in them
//   op, kind, dtype, rows, n: the call, by bench's operation and the words of its KIND
//   round: 1, 2, ..; every kernel of every shape has a time in each
//   kernel: its name
//   us, spread, ceiling_us: median of a call, (slowest - fastest) / median, and median of a copy of
//   as many bytes, all in one run; four digits
// An empty cell up to the kernel's is that of the line above.
#pragma once

#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tuning.h"

namespace fastnorm::tool {

// Where times come from. Times of two machines or libraries do not compare, so they do not share a
// file.
struct TuneOrigin {
  std::string device, driver, library, numeric_version;
};

class TuneCsv {
 public:
  // Without `resume` the file must not exist, or be empty. With it, a last line without its end is
  // dropped. Throws a CommandError that names the line where something else than such a file is
  // there, or one of another origin.
  TuneCsv(const std::string& path, const TuneOrigin& origin, bool resume);

  bool has(const BenchCase& c, const std::string& kernel, int round) const;
  // The line is in the file when this returns.
  void add(const BenchCase& c, const std::string& kernel, int round, const Timing& time);

  size_t lines() const { return known_.size(); }
  bool dropped_torn_line() const { return dropped_; }

 private:
  void read(const std::string& text);

  std::string path_;
  TuneOrigin origin_;
  std::vector<std::string> above_;  // the cells of the last line that this run wrote
  std::set<std::string> known_;
  std::ofstream file_;
  bool dropped_ = false;
};

// Fields of a line of comma-separated values; one in double quotes may hold commas, and "" for a
// quote.
std::vector<std::string> csv_fields(const std::string& line);

// The hidden sizes of models and numbers of rows that matter, most important first.
const std::vector<int64_t>& model_lengths();
const std::vector<int64_t>& model_rows();

// The cases of these lists, dtype by dtype, each shape with all operations. Shapes are ordered so
// that any beginning is a grid of the most important lengths and rows; other lengths and rows come
// last.
std::vector<BenchCase> tune_cases(const std::vector<std::string>& ops,
                                  const std::vector<std::string>& dtypes,
                                  const std::vector<int64_t>& lengths,
                                  const std::vector<int64_t>& rows);

// Times one kernel for the case that it was made for; none where the device cannot run it.
using TimeKernel = std::function<std::optional<Timing>(const std::string& kernel)>;

// Makes the first timing of a run twice and drops the first of the two, which reads up to 15 %
// fast.
class FirstDiscarded {
 public:
  std::optional<Timing> time(const TimeKernel& kernel_time, const std::string& kernel);
  int discarded() const { return discarded_; }

 private:
  int discarded_ = 0;
};

struct TuneCounts {
  size_t written = 0, had = 0;     // times
  size_t cannot_run = 0;           // kernels, in every round
  size_t too_large = 0, left = 0;  // cases, in every round
  int discarded = 0;               // times
};

struct TuneRun {
  const Planner& planner;
  std::vector<BenchCase> cases;
  int rounds;
  // Memory for a case, and what times kernels in it; throws support::DevmemError where there is too
  // little. It is called only for cases that the file lacks a time of.
  std::function<TimeKernel(const BenchCase&)> prepare;
  std::function<bool()> out_of_time;  // asked before every timing
  std::function<void(size_t done, size_t all, const BenchCase&)> progress;
};

// Times what the file lacks, round after round.
TuneCounts run_tune_csv(const TuneRun& run, TuneCsv* csv);

}  // namespace fastnorm::tool
