// The specification in double: named roundings as they are named, everything else without single-precision error, and how far a
// single-precision result may lie from it.
#pragma once

#include <cstdint>
#include <vector>

#include "ref/norm_spec.h"

namespace fastnorm::ref {

struct Range {
  double low = 0, high = 0;
  bool holds(double v) const { return v >= low && v <= high; }
};

// Where the results of a row may lie. Rows whose statistics leave the range of f32, or hold values that are not finite, have no
// bounds: the model alone says what they give.
struct NormBounds {
  bool statistics_valid = false;  // mean and rstd
  bool y_valid = false;           // EVERY_STEP: only where no statistic may round either way
  Range mean, rstd;
  std::vector<Range> y;  // [n] of values of y's dtype
};

// Roundings on the longest path of a row's sum.
double longest_path(Order order, Type dtype, int64_t n);

// Bounds for results of the given order. For CPU against GPU the bounds of both apply to each.
NormBounds norm_bounds(const NormOptions& options, const NormRow& row, Order order);

}  // namespace fastnorm::ref
