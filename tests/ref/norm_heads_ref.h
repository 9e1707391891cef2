// A row of norm_heads before it is stored: a scalar single-precision program that a backend must
// equal bit for bit. Also the specification in double, and how far a single-precision result may be
// from it.
#pragma once

#include <cstdint>

#include "ref/norm_spec.h"

namespace fastnorm::ref {

struct RopeOptions {
  bool interleaved = false;
  bool inverse = false;
  bool every_step = false;
  int64_t offset = 0;  // first column that rope turns
  int64_t half = 0;    // pairs
};

struct HeadOptions {
  bool normalise = false;
  NormOptions norm;  // its dtype is T, also without a norm
  bool round_before_rope = false;
  bool rope = false;
  RopeOptions turn;
};

// Pair j is columns `first` and `second`.
struct RopePair {
  int64_t first, second;
};
RopePair rope_pair(const RopeOptions& options, int64_t j);

// The row of positions that pair j uses. There are `axes` axes with `sections` pairs each.
int rope_axis(int axes, const int32_t* sections, bool interleaved, int64_t j);

// The entry for pair j in a table row of width `width`.
int64_t rope_entry(const RopeOptions& options, int64_t width, int64_t j);

// The row [n] before it is stored, from its mean (LAYER) and rstd. c and s are [half].
void head_model(const HeadOptions& options, const NormRow& row, float mean, float rstd,
                const float* c, const float* s, float* o);

// The row in double precision. `bound` [n]: how far single precision may be from it before the
// result is stored. mean and rstd are exact. No step between rounds, and neither does EVERY_STEP.
void head_ref(const HeadOptions& options, const NormRow& row, double mean, double rstd,
              const float* c, const float* s, double* o, double* bound);

// A head's weight times the scale of its codes and a factor.
float head_weight_model(float weight, float scale, float factor);

// The head's weight in double precision, and how far single precision may be from it.
double head_weight_ref(double weight, double scale, double factor, double* bound);

}  // namespace fastnorm::ref
