// Which kernel of norm_backward a call on a GPU runs on. The lists are norm_backward_choice_*.inc.
// A list begins with the kinds of calls that it serves:
//
//   KIND(many, b16, either, both)
//
// The first word is the job. `few`: rows, with dweight or dbias wanted and nothing replaced.
// `many`: the same for more rows. `alone`: only dx is wanted. `any`: the blocks of rows in the
// general form. Then the elements of x: f16, bf16, b16 (both), f32, all. Then the statistic: rms,
// layer, either. Then dresidual_in: plain, add, both. Its lines follow:
//
//   ROWS(65, 128, 1, 16384, 16, 1, 1, 32, 1, 1)
//
// This is for 1 to 16384 rows of 65 to 128 elements that share a row of the weight. A row has 16
// threads with 1 vector each, in 1 block. A block has 32 rows at once. Each loads 1 row at a time,
// 1 stage ahead. These are NormBackwardVariant's numbers from `threads` to `stages`. A call without
// a line uses the next job's list: few or alone, many, any.
#pragma once

#include <cstdint>
#include <span>

#include "core/choice.h"
#include "core/norm_backward_plan.h"

namespace fastnorm {

enum class BackwardJob : uint8_t { kFew, kMany, kAlone, kAny };

struct NormBackwardPick {
  int16_t threads;
  int8_t vectors, blocks, lanes, unroll, stages;
};
using NormBackwardChoice = Choice<NormBackwardPick>;

struct DtypeSet {
  bool f32, f16, bf16;
  constexpr bool has(Dtype dtype) const {
    return dtype == Dtype::kF32 ? f32 : dtype == Dtype::kF16 ? f16 : bf16;
  }
};

struct NormBackwardList {
  BackwardJob job;
  DtypeSet dtypes;
  bool rms, layer, plain, add;
  const char* text;  // "KIND(many, b16, either, both)"
  std::span<const NormBackwardChoice> lines;
};

struct NormBackwardChoices {
  std::span<const NormBackwardList> lists;
};

extern const NormBackwardChoices kNormBackwardChoicesSm90, kNormBackwardChoicesDefault;

// What selects the kernel of a call.
struct NormBackwardDecision {
  const NormBackwardList* list = nullptr;
  const NormBackwardChoice* line = nullptr;  // nullptr: no list has a line
};

// The line of a call depends on the row length in elements, and on the rows that share a row of the
// weight.
NormBackwardDecision find_norm_backward_choice(const NormBackwardChoices& choices, BackwardJob job,
                                               Dtype dtype, Stat stat, bool residual, int64_t n,
                                               int64_t shared_rows);

}  // namespace fastnorm
