// Which kernel of norm_backward a call on a GPU runs on. The lists are norm_backward_choice_*.inc. A list begins with the kinds of calls that it
// serves:
//
//   KIND(many, b16, either, both)
//
// job: `few` (rows; dweight or dbias is wanted, and nothing is replaced), `many`, `alone` (dx alone is wanted), `any` (the general form's blocks of
// rows); elements of x: f16, bf16, b16 (both), f32, all; statistic: rms, layer, either; dresidual_in: plain, add, both. Then follow its lines:
//
//   ROWS(65, 128, 1, 16384, 16, 1, 1, 32, 1, 1)
//
// Rows of 65 to 128 elements, 1 to 16384 of them that share a row of the weight: 16 threads a row with 1 vector each in 1 block, 32 rows a
// block at once, 1 row of each loaded together, 1 stage ahead: NormBackwardVariant's numbers, from `threads` to `stages`. A call without a line runs on
// the next job's list: few and alone, many, any.
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

// What decides a call.
struct NormBackwardDecision {
  const NormBackwardList* list = nullptr;
  const NormBackwardChoice* line = nullptr;  // nullptr: no list has one
};

// The line of a call goes by length in elements and by rows that share a row of the weight.
NormBackwardDecision find_norm_backward_choice(const NormBackwardChoices& choices, BackwardJob job,
                                               Dtype dtype, Stat stat, bool residual, int64_t n,
                                               int64_t shared_rows);

}  // namespace fastnorm
