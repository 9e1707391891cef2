// Choices of the backward pass that were measured on one GPU (tuning.h).
#pragma once

#include <cstdint>
#include <span>

#include "core/common/error.h"
#include "core/norm/tuning.h"
#include "core/norm_backward/choice.h"
#include "core/norm_backward/plan.h"

namespace fastnorm {

class NormBackwardTuning : public TunedLines<NormBackwardPick> {
 public:
  class Reader;

  const NormBackwardChoice* find(const NormBackwardKind& kind, int64_t n,
                                 int64_t shared_rows) const {
    return TunedLines::find(kind.number(), line_length(n), shared_rows);
  }
};

class NormBackwardTuning::Reader
    : public TuningReader<NormBackwardTuning, NormBackwardEntry, ParsedBackwardChoice> {
 public:
  using TuningReader::TuningReader;
  static constexpr const char* kLines =
      "KIND(job, elements, statistic, inputs) or ROWS(least n, most n, least rows, most rows, "
      "threads, vectors, blocks, lanes, stages)";

  fastnorm_status add_choice(const TuningLine& line, Error& error);

 private:
  fastnorm_status has_kernel(const NormBackwardKind& kind, const TuningLine& line,
                             Error& error) const;
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
