// Choices of the forward that were measured on one GPU (tuning.h). The lists are for rows with one
// index. Query and key heads keep the library's choice, which serves both.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/common/error.h"
#include "core/common/tuned_lines.h"
#include "core/norm/plan.h"

namespace fastnorm {

class NormTuning {
 public:
  class Reader;

  // The line for calls of a kind, or nullptr. It lives as long as this object.
  const NormChoice* find(NormKind kind, int64_t vectors, int64_t rows) const {
    return lines_.find(kind.number(), vectors, rows);
  }

  size_t size() const { return lines_.size(); }

 private:
  TunedLines<NormPick> lines_;
};

// The family's lines of a tuning file, one after another. A kernel whose cluster a device with
// these facts cannot schedule is left out.
class NormTuning::Reader {
 public:
  static constexpr const char* kLines =
      "KIND(width, source, statistic, weights, output, reach, ask, index) or ROWS(least n, most n, "
      "least rows, most rows, threads, vectors, blocks, flavour)";

  Reader(std::span<const NormEntry> table, const DeviceFacts& facts)
      : table_(table), facts_(facts) {}

  // False if the text is no KIND line of the family.
  bool read_kind(std::string_view text) { return parse_choice(text, &parsed_) && parsed_.is_kind; }
  fastnorm_status check_kind(const TuningLine& line, Error& error) const;
  // False if the text is no line of choices.
  bool read_choice(std::string_view text) {
    return parse_choice(text, &parsed_) && !parsed_.is_kind;
  }
  fastnorm_status add_choice(const TuningLine& line, Error& error);
  fastnorm_status finish(NormTuning* tuning, Error& error);

 private:
  fastnorm_status has_kernels(const NormKind& kind, const TuningLine& line, Error& error) const;

  std::span<const NormEntry> table_;
  const DeviceFacts& facts_;
  ParsedChoice parsed_;
  NormTuning tuning_;
};

}  // namespace fastnorm
