// The backward formulas in double, as fastnorm/norm_backward.h writes them, and how far a
// single-precision result may lie from them. mean and rstd are inputs.
#pragma once

#include <cstdint>
#include <vector>

#include "ref/norm_backward_model.h"
#include "ref/norm_ref.h"

namespace fastnorm::ref {

// Where dx, or dresidual, of a row may lie; empty where a value or statistic is not finite or
// leaves the range in which relative errors mean something: there the model alone says what comes
// out. `stored` is the output's dtype.
std::vector<Range> norm_backward_row_bounds(const NormBackwardOptions& options,
                                            const NormBackwardRow& row, Order order, Type stored);

// What a gradient of parameters is stored in, and what it is added to.
struct StoredSum {
  Type dtype = Type::kF32;
  const float* old = nullptr;  // [n], null = nothing
};

// Where dweight and dbias may lie; an element without bounds is from -Inf to Inf.
std::vector<Range> norm_backward_dweight_bounds(const NormBackwardOptions& options, int64_t rows,
                                                int64_t n, const NormBackwardRows& row_of,
                                                const StoredSum& stored);
std::vector<Range> norm_backward_dbias_bounds(int64_t rows, int64_t n,
                                              const NormBackwardRows& row_of,
                                              const StoredSum& stored);

}  // namespace fastnorm::ref
