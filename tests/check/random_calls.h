// Runs calls of a family with a model of a line (support/checked_call.h) on the devices of targets,
// against the model byte for byte. The targets have one order of sums, and expected results are
// computed once for all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "check/options.h"
#include "check/run_call.h"
#include "check/sweep.h"
#include "check/target.h"

namespace fastnorm::check {

// The calls of one family. A filter sees NAME and a line's words behind the family.
class RandomCalls {
 public:
  using Draw = std::function<std::string(uint64_t seed, bool gpu)>;

  RandomCalls(const char* name, std::span<Target* const> targets, const Options& options,
              Counts* counts)
      : name_(name), targets_(targets), options_(options), counts_(*counts) {}

  // A filter may name the family, or more of its calls than that.
  bool wanted() const {
    return options_.wants(name_ + " ") || options_.filter.find(name_ + " ") != std::string::npos;
  }

  // On the kernels that planning chooses.
  void run(uint64_t count, const Draw& draw);
  // Each kernel of a GPU, `most` times.
  void run_each(int most, const Draw& draw);
  // On the chosen kernel, and with `all` on each of a GPU that can.
  void run_line(const std::string& line, bool all = false);
  // The comparison must be able to fail: some of these calls differ if sums have another order.
  void count_orders(const Draw& draw);
  void count(const Target& target, bool good, const char* what);
  void print() const;

  int64_t cases() const { return cases_; }
  int64_t bounded() const { return bounded_; }
  int64_t never() const { return never_; }  // kernels that no call ran on

 private:
  bool gpu() const { return targets_[0]->cuda; }
  bool wants(const std::string& line) const {
    return options_.wants(name_ + line.substr(line.find(' ')));
  }
  // That a line may be run on.
  std::vector<std::string> kernels(const std::string& line) const {
    return kernels_for(line.substr(0, line.find(' ')), *targets_[0]);
  }
  void check(support::CheckedCall& call, int32_t kernel);

  const std::string name_;
  const std::span<Target* const> targets_;
  const Options& options_;
  Counts& counts_;
  int64_t cases_ = 0, bounded_ = 0, never_ = 0;
};

}  // namespace fastnorm::check
