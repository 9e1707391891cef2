// Random calls of norm with stages as lines of text, and what the model says should be there
// afterwards: of any call of norm.
#pragma once

#include <string>
#include <vector>

#include "support/call_model.h"

namespace fastnorm::support {

// What calls are like.
enum class StagesKind : uint8_t {
  kAny,
  kAligned,    // inputs of x's dtype; groups are aligned
  kGated,      // aligned: a gate after RMS, and little else
  kSandwich,   // aligned: RMS, the residual, RMS
  kModulated,  // aligned: residual gate, scale and shift
  kScaled,     // aligned: scale and shift of RMS, without a sum before them
  kMixed,      // as kModulated, of x's dtype or f32, with tables or without
  kRotated,    // aligned: RMS without a stage, whose codes are rotated
};
inline constexpr int kStagesKinds = 8;

std::string draw_norm_stages(uint64_t seed, StagesKind kind, bool gpu);

// The rows of modulators. On GPUs some numbers are outside them: there the nearest row counts, and
// on CPUs they are errors.
void fill_norm(Operands& call);
Expected expect_norm(Operands& call, ref::Order order);

// A number of a modulator's row that is none of its `rows`.
struct OutsideRow {
  bool wide;  // i64
  int64_t number, rows;
};
std::vector<OutsideRow> outside_rows(const Operands& call);

}  // namespace fastnorm::support
