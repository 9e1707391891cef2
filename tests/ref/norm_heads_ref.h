// What a row of norm_heads becomes before it is stored: a scalar single-precision program that a backend must equal bit for bit, and
// the specification in double with how far a single-precision result may lie from it.
#pragma once

#include <cstdint>

#include "ref/norm_spec.h"

namespace fastnorm::ref {

struct RopeOptions {
  bool interleaved = false;
  bool inverse = false;
  bool every_step = false;
  int64_t offset = 0;  // first column that turns
  int64_t half = 0;    // pairs
};

struct HeadOptions {
  bool normalise = false;
  NormOptions norm;  // its dtype is T, without a norm, too
  bool round_before_rope = false;
  bool rope = false;
  RopeOptions turn;
};

// Pair j is columns `first` and `second`.
struct RopePair {
  int64_t first, second;
};
RopePair rope_pair(const RopeOptions& options, int64_t j);

// The row of positions that pair j has, of so many axes with `sections` pairs each.
int rope_axis(int axes, const int32_t* sections, bool interleaved, int64_t j);

// The entry of pair j in a row of a table `width` wide.
int64_t rope_entry(const RopeOptions& options, int64_t width, int64_t j);

// The row [n] before it is stored, from its mean (LAYER) and rstd. c and s: [half].
void head_model(const HeadOptions& options, const NormRow& row, float mean, float rstd,
                const float* c, const float* s, float* o);

// The same in double; `bound` [n] is how far single precision may be off before the result is stored. The mean and rstd are exact, and
// neither steps between nor EVERY_STEP round.
void head_ref(const HeadOptions& options, const NormRow& row, double mean, double rstd,
              const float* c, const float* s, double* o, double* bound);

}  // namespace fastnorm::ref
