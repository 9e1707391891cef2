// Choices of the forward that were measured on one GPU (tuning.h). The lists are for rows with one
// index. Query and key heads keep the library's choice, which serves both.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "core/common/error.h"
#include "core/common/tuned_lines.h"
#include "core/norm/plan.h"

namespace fastnorm {

// A family's lines of a tuning file, one after another. A kernel whose cluster a device with these
// facts cannot schedule is left out. The family has parse_choice() and for_each_kind().
template <class Tuning, class Entry, class Parsed>
class TuningReader {
 public:
  TuningReader(std::span<const Entry> table, const DeviceFacts& facts)
      : table_(table), facts_(facts) {}

  // False if the text is no KIND line of the family.
  bool read_kind(std::string_view text) { return parse_choice(text, &parsed_) && parsed_.is_kind; }
  // False if the text is no line of choices.
  bool read_choice(std::string_view text) {
    return parse_choice(text, &parsed_) && !parsed_.is_kind;
  }

  fastnorm_status finish(Tuning* tuning, Error& error) {
    FASTNORM_TRY(tuning_.sort(error));
    *tuning = std::move(tuning_);
    return FASTNORM_OK;
  }

 protected:
  // Adds the line for each of its kinds, if has_kernels(kind) is FASTNORM_OK for them all.
  fastnorm_status add_if(const TuningLine& line, auto has_kernels) {
    fastnorm_status status = FASTNORM_OK;
    for_each_kind(parsed_.kinds, [&](const auto& kind) {
      if (status == FASTNORM_OK) status = has_kernels(kind);
    });
    FASTNORM_TRY(status);
    auto choice = parsed_.choice;
    if (choice.pick.blocks > facts_.max_cluster_blocks) return FASTNORM_OK;
    choice.text = line.text;
    for_each_kind(parsed_.kinds, [&](const auto& kind) { tuning_.add(kind.number(), choice); });
    return FASTNORM_OK;
  }

  std::span<const Entry> table_;
  const DeviceFacts& facts_;
  Parsed parsed_;

 private:
  Tuning tuning_;
};

class NormTuning : public TunedLines<NormPick> {
 public:
  class Reader;

  const NormChoice* find(NormKind kind, int64_t vectors, int64_t rows) const {
    return TunedLines::find(kind.number(), vectors, rows);
  }
};

class NormTuning::Reader : public TuningReader<NormTuning, NormEntry, ParsedChoice> {
 public:
  using TuningReader::TuningReader;
  static constexpr const char* kLines =
      "KIND(width, source, statistic, weights, output, reach, ask, index) or ROWS(least n, most n, "
      "least rows, most rows, threads, vectors, blocks, flavour)";

  fastnorm_status check_kind(const TuningLine& line, Error& error) const;
  fastnorm_status add_choice(const TuningLine& line, Error& error);

 private:
  fastnorm_status has_kernels(const NormKind& kind, const TuningLine& line, Error& error) const;
};

}  // namespace fastnorm
