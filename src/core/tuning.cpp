#include "core/tuning.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

namespace fastnorm {
namespace {

constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// One file, line after line.
class Reader {
 public:
  Reader(const char* library, const TuningTables& tables, const DeviceFacts& facts, Error& error)
      : library_(library),
        arch_(facts.arch->name),
        norm_(tables.norm, facts),
        norm_backward_(tables.norm_backward, facts),
        error_(error) {}

  fastnorm_status read(std::string_view text, Tuning* tuning) {
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = trimmed(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
      ++number_;
      if (line.empty() || line.front() == '#') continue;
      FASTNORM_TRY(read_line(line));
    }
    Error& error = error_;
    FASTNORM_REQUIRE(
        heads_ == kHeads, FASTNORM_ERROR_ARGUMENT,
        "options.tuning_file ends after %d of the %d lines that come before its choices; "
        "required: \"fastnorm tuning 2\", \"library %s\" and \"arch %s\"",
        heads_, kHeads, library_, arch_);
    Tuning found;
    FASTNORM_TRY(norm_.finish(&found.norm, error));
    FASTNORM_TRY(norm_backward_.finish(&found.norm_backward, error));
    *tuning = std::move(found);
    return FASTNORM_OK;
  }

 private:
  static constexpr int kHeads = 3;
  enum class Family { kNone, kNorm, kNormBackward };

  // `value`: what the line must say of `name`.
  fastnorm_status head(std::string_view line, const char* name, const char* value) {
    Error& error = error_;
    const std::string wanted = std::string(name) + " " + value, given(line);
    FASTNORM_REQUIRE(line == wanted, FASTNORM_ERROR_ARGUMENT,
                     "options.tuning_file, line %d is \"%.*s\"; required: \"%s %s\"; a file of "
                     "another library or GPU does not fit: \"fastnorm tune\" writes one",
                     number_, kShownChoice, given.c_str(), name, value);
    ++heads_;
    return FASTNORM_OK;
  }

  fastnorm_status read_line(std::string_view line) {
    if (heads_ == 0) return head(line, "fastnorm", "tuning 2");
    if (heads_ == 1) return head(line, "library", library_);
    if (heads_ == 2) return head(line, "arch", arch_);
    const TuningLine named = {number_, texts_.emplace_back(line).c_str()};
    if (norm_.read_kind(line)) {
      family_ = Family::kNorm;
      return norm_.check_kind(named, error_);
    }
    if (norm_backward_.read_kind(line)) {
      family_ = Family::kNormBackward;
      return FASTNORM_OK;
    }
    if (family_ == Family::kNormBackward && norm_backward_.read_choice(line))
      return norm_backward_.add_choice(named, error_);
    if (family_ == Family::kNorm && norm_.read_choice(line)) return norm_.add_choice(named, error_);
    return refuse(named);
  }

  fastnorm_status refuse(const TuningLine& line) {
    Error& error = error_;
    const std::string_view text = line.text;
    const bool is_choice = text.starts_with("ROWS(") || text.starts_with("TOKENS(");
    FASTNORM_REQUIRE(family_ != Family::kNone || !is_choice, FASTNORM_ERROR_ARGUMENT,
                     "options.tuning_file, line %d is \"%.*s\"; required: ROWS, after a KIND",
                     line.number, kShownChoice, line.text);
    const char *lines = NormTuning::Reader::kLines, *others = NormBackwardTuning::Reader::kLines;
    const bool backward = family_ == Family::kNormBackward;
    if (backward) std::swap(lines, others);
    return error.set(FASTNORM_ERROR_ARGUMENT,
                     "options.tuning_file, line %d is \"%.*s\"; required: %s; of the %s: %s",
                     line.number, kShownChoice, line.text, lines,
                     backward ? "forward" : "backward pass", others);
  }

  const char* const library_;
  const char* const arch_;
  NormTuning::Reader norm_;
  NormBackwardTuning::Reader norm_backward_;
  Error& error_;
  std::deque<std::string> texts_;
  Family family_ = Family::kNone;
  int heads_ = 0, number_ = 0;
};

}  // namespace

fastnorm_status read_tuning(std::string_view text, const char* library, const TuningTables& tables,
                            const DeviceFacts& facts, Tuning* tuning, Error& error) {
  return Reader(library, tables, facts, error).read(text, tuning);
}

}  // namespace fastnorm
