// The lines of a tuning file for one family, by kind of call. A kind is the family's number for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "core/common/check.h"
#include "core/common/choice.h"

namespace fastnorm {

// A line as it is read: its place in the file, and its text, which lives until all are read.
struct TuningLine {
  int number;
  const char* text;
};

// How much of a text an error message shows.
inline constexpr int kShownChoice = 80;

template <class Pick>
class TunedLines {
 public:
  void add(int32_t kind, const Choice<Pick>& line) { rules_.push_back({kind, line}); }

  // Makes find() work. Two lines for the same rows contradict each other: neither is taken.
  fastnorm_status sort(Error& error) {
    const auto order = [](const Rule& r) {
      return std::tuple(r.kind, r.line.least_vectors, r.line.least_rows);
    };
    std::sort(rules_.begin(), rules_.end(),
              [&](const Rule& a, const Rule& b) { return order(a) < order(b); });
    for (size_t i = 1; i < rules_.size(); ++i) {
      const Choice<Pick>&a = rules_[i - 1].line, &b = rules_[i].line;
      const bool same_n = a.least_vectors == b.least_vectors && a.most_vectors == b.most_vectors;
      const bool apart = rules_[i - 1].kind != rules_[i].kind ||
                         (same_n ? a.most_rows < b.least_rows && a.most_rows != kNoLimit
                                 : a.most_vectors < b.least_vectors);
      FASTNORM_REQUIRE(apart, FASTNORM_ERROR_ARGUMENT,
                       "options.tuning_file has \"%s\" and \"%s\" for one kind of call; required: "
                       "lengths that are equal or disjoint, and rows that are disjoint",
                       a.text, b.text);
    }
    for (const Rule& rule : rules_) {
      kinds_.push_back(rule.kind);
      lines_.push_back(rule.line);
      lines_.back().text = "a line of the tuning file";
    }
    rules_.clear();
    return FASTNORM_OK;
  }

  // The line for calls of a kind, or nullptr. It lives as long as this object.
  const Choice<Pick>* find(int32_t kind, int64_t length, int64_t rows) const {
    const auto [first, last] = std::equal_range(kinds_.begin(), kinds_.end(), kind);
    const std::span<const Choice<Pick>> lines(lines_.data() + (first - kinds_.begin()),
                                              static_cast<size_t>(last - first));
    return find_choice(lines, length, rows, [](const Choice<Pick>&) { return int64_t{1}; });
  }

  size_t size() const { return lines_.size(); }

 private:
  struct Rule {
    int32_t kind;
    Choice<Pick> line;
  };

  std::vector<Rule> rules_;          // before sort()
  std::vector<int32_t> kinds_;       // kind of each line, ascending
  std::vector<Choice<Pick>> lines_;  // of one kind in the order of find_choice()
};

}  // namespace fastnorm
