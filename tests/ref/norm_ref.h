// The specification in double. Named roundings round as named; everything else has no
// single-precision error. Also how far a single-precision result may be from it.
#pragma once

#include <cstdint>
#include <vector>

#include "ref/norm_spec.h"

namespace fastnorm::ref {

struct Range {
  double low = 0, high = 0;
  bool holds(double v) const { return v >= low && v <= high; }
};

// Bounds of a row's results. Rows with values that are not finite, or with statistics outside the
// range of f32, have no bounds. Then only the model gives the result.
struct NormBounds {
  bool statistics_valid = false;  // mean and rstd
  bool y_valid = false;  // EVERY_STEP: only if rounding leaves no doubt about the statistics
  Range mean, rstd;
  std::vector<Range> y;  // [n] of values of y's dtype
};

// The number of roundings on the longest path of a row's sum.
double longest_path(Order order, Type dtype, int64_t n);

// Bounds for results in the given order. To compare CPU and GPU, each must be within both bounds.
NormBounds norm_bounds(const NormOptions& options, const NormRow& row, Order order);

}  // namespace fastnorm::ref
