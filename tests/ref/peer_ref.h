// The specification of several ranks: sums in rank order and merged statistics. A scalar
// single-precision program that a backend must equal bit for bit, and bounds in double.
#pragma once

#include <cstdint>

#include "ref/norm_spec.h"

namespace fastnorm::ref {

// x[r] is rank r's row [n]. The sum as later steps see it: rounded to `dtype`, or f32.
void peer_sum_model(Type dtype, bool rounded, const float* const* x, int ranks, int64_t n,
                    float* sum);

// The exact sum, and how far an f32 sum without further rounding may be from it.
void peer_sum_ref(const float* const* x, int ranks, int64_t n, double* sum, double* bound);

// One rank's part of a row. RMS: the sum of squares. LAYER: a mean, and the sum of squares about
// it.
struct PeerPart {
  float mean, squares;
};
struct PeerStatistic {
  float mean, rstd;
};
// Merges `ranks` parts of n columns each.
PeerStatistic peer_merge_model(Kind kind, float eps, const PeerPart* parts, int ranks, int64_t n);

// The statistic of the whole row in double, and how far a merged one may be from it.
struct PeerStatisticRef {
  double mean, rstd;
  double mean_bound, rstd_bound;
};
PeerStatisticRef peer_statistic_ref(Kind kind, Type dtype, float eps, const float* const* x,
                                    int ranks, int64_t n);

}  // namespace fastnorm::ref
