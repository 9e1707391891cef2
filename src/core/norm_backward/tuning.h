// Choices of the backward pass that were measured on one GPU (tuning.h).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/common/error.h"
#include "core/common/tuned_lines.h"
#include "core/norm_backward/choice.h"
#include "core/norm_backward/plan.h"

namespace fastnorm {

class NormBackwardTuning {
 public:
  class Reader;

  // The line for calls of a kind, or nullptr. It lives as long as this object.
  const NormBackwardChoice* find(const NormBackwardKind& kind, int64_t n,
                                 int64_t shared_rows) const {
    return lines_.find(kind.number(), line_length(n), shared_rows);
  }

  size_t size() const { return lines_.size(); }

 private:
  TunedLines<NormBackwardPick> lines_;
};

// The family's lines of a tuning file, one after another. A kernel whose cluster a device with
// these facts cannot schedule is left out.
class NormBackwardTuning::Reader {
 public:
  static constexpr const char* kLines =
      "KIND(job, elements, statistic, inputs) or ROWS(least n, most n, least rows, most rows, "
      "threads, vectors, blocks, lanes, stages)";

  Reader(std::span<const NormBackwardEntry> table, const DeviceFacts& facts)
      : table_(table), facts_(facts) {}

  // False if the text is no KIND line of the family.
  bool read_kind(std::string_view text) {
    return parse_backward_choice(text, &parsed_) && parsed_.is_kind;
  }
  // False if the text is no line of choices.
  bool read_choice(std::string_view text) {
    return parse_backward_choice(text, &parsed_) && !parsed_.is_kind;
  }
  fastnorm_status add_choice(const TuningLine& line, Error& error);
  fastnorm_status finish(NormBackwardTuning* tuning, Error& error);

 private:
  fastnorm_status has_kernel(const NormBackwardKind& kind, const TuningLine& line,
                             Error& error) const;

  std::span<const NormBackwardEntry> table_;
  const DeviceFacts& facts_;
  ParsedBackwardChoice parsed_;
  NormBackwardTuning tuning_;
};

// As plan_norm_backward() of plan.h. Lines of `tuning` (nullptr: none) come before
// the library's lists.
fastnorm_status plan_norm_backward(const NormBackwardDesc& desc, const DeviceFacts& facts,
                                   std::span<const NormBackwardEntry> table,
                                   const NormBackwardTuning* tuning, NormBackwardPlan* plan,
                                   Error& error);

// True if plan_norm_backward() takes a kernel that holds rows.
bool plans_held_rows(const NormBackwardDesc& desc, const DeviceFacts& facts,
                     std::span<const NormBackwardEntry> table, const NormBackwardTuning* tuning);

}  // namespace fastnorm
