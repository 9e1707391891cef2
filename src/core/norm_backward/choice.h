// Which kernel of norm_backward a call on a GPU runs on. The lists are choice_*.inc.
// A list begins with the kinds of calls that it serves:
//
//   KIND(many, b16, either, both)
//
// The first word is the job. `few`: rows, with dweight or dbias wanted and nothing replaced.
// `many`: the same for more rows. `alone`: only dx is wanted. `any`: the blocks of rows in the
// general form. Then the elements of x: f16, bf16, b16 (both), f32, all. Then the statistic: rms,
// layer, either. Then what a row has besides x and dy: plain (nothing), add (dresidual_in), both
// (either of the two), gated, branch, modulated. BackwardInput explains the last three. Its lines
// follow:
//
//   ROWS(65, 128, 1, 16384, 16, 1, 1, 32, 4)
//
// This is for 1 to 16384 rows of 65 to 128 elements that share a row of the weight. A row has 16
// threads with 1 vector each, in 1 block. A block has 32 rows at once, and 4 stages of them. These
// are NormBackwardVariant's numbers from `threads` to `stages`. A call without
// a line uses the next job's list: few or alone, many, any.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/common/choice.h"
#include "core/norm_backward/plan.h"

namespace fastnorm {

enum class BackwardJob : uint8_t { kFew, kMany, kAlone, kAny };

// The form of a job's kernels.
constexpr BackwardForm form_of(BackwardJob job) {
  return job == BackwardJob::kAny    ? BackwardForm::kRows
         : job == BackwardJob::kMany ? BackwardForm::kPersistent
                                     : BackwardForm::kFew;
}

struct NormBackwardPick {
  int16_t threads;
  int8_t vectors, blocks, lanes, stages;
};
using NormBackwardChoice = Choice<NormBackwardPick>;

// The kinds of calls that a KIND line names: bits of each word's values.
struct NormBackwardKinds {
  uint8_t jobs = 0, dtypes = 0, stats = 0, inputs = 0;
};

// One kind of call.
struct NormBackwardKind {
  BackwardJob job;
  Dtype dtype;
  Stat stat;
  BackwardInput input;  // kAny: kPlain or kAdd, since its kernels ask at run time

  constexpr int32_t number() const {
    return static_cast<int32_t>(job) | static_cast<int32_t>(dtype) << 2 |
           static_cast<int32_t>(stat) << 4 | static_cast<int32_t>(input) << 5;
  }
  static constexpr int32_t kCount = kBackwardInputs << 5;

  // The inverse of number().
  static constexpr NormBackwardKind of(int32_t number) {
    return {static_cast<BackwardJob>(number & 3), static_cast<Dtype>(number >> 2 & 3),
            static_cast<Stat>(number >> 4 & 1), static_cast<BackwardInput>(number >> 5)};
  }
  constexpr bool is_in(const NormBackwardKinds& kinds) const {
    return (kinds.jobs >> static_cast<int>(job) & 1) != 0 &&
           (kinds.dtypes >> static_cast<int>(dtype) & 1) != 0 &&
           (kinds.stats >> static_cast<int>(stat) & 1) != 0 &&
           (kinds.inputs >> static_cast<int>(input) & 1) != 0;
  }
};

// What a line of text says, in the notation of choice_*.inc. Tuning files use it.
struct ParsedBackwardChoice {
  NormBackwardKinds kinds;  // of a KIND line
  NormBackwardChoice choice = {};
  bool is_kind = false;
};
// False if the text is neither a KIND nor a ROWS line.
bool parse_choice(std::string_view text, ParsedBackwardChoice* parsed);

// Calls fn(kind) for each of several kinds.
void for_each_kind(const NormBackwardKinds& kinds, auto fn) {
  for (int32_t number = 0; number < NormBackwardKind::kCount; ++number) {
    const NormBackwardKind kind = NormBackwardKind::of(number);
    if (kind.is_in(kinds)) fn(kind);
  }
}

struct NormBackwardList {
  NormBackwardKinds kinds;
  const char* text;  // "KIND(many, b16, either, both)"
  std::span<const NormBackwardChoice> lines;
};

struct NormBackwardChoices {
  std::span<const NormBackwardList> lists;
};

extern const NormBackwardChoices kNormBackwardChoicesSm90, kNormBackwardChoicesDefault;

// A length beyond what a line can say is as long as the last one.
constexpr int64_t line_length(int64_t n) { return n < kNoLimit ? n : kNoLimit; }

// What selects the kernel of a call.
struct NormBackwardDecision {
  const char* kind = "";                     // the KIND line
  const NormBackwardChoice* line = nullptr;  // nullptr: no list has a line
};

// A KIND line that names this kind alone: "KIND(many, bf16, rms, plain)".
const char* text_of(const NormBackwardKind& kind);

// The line of a call depends on the row length in elements, and on the rows that share a row of the
// weight.
NormBackwardDecision find_norm_backward_choice(const NormBackwardChoices& choices,
                                               const NormBackwardKind& kind, int64_t n,
                                               int64_t shared_rows);

// The kernel of a form that a pick means for a kind of call: its index in the table, or -1.
int32_t find_norm_backward_entry(std::span<const NormBackwardEntry> table,
                                 const NormBackwardKind& kind, BackwardForm form,
                                 const NormBackwardPick& pick);

// True if a kernel serves aligned calls of so many elements a row and rows that share a row of the
// weight. `sums`: dweight or dbias is wanted.
bool holds_rows(const NormBackwardVariant& variant, int64_t n, int64_t shared_rows, bool sums);

}  // namespace fastnorm
