// The backward formulas of fastnorm/norm_backward.h in double, and how far a single-precision
// result may be from them. mean and rstd are inputs.
#pragma once

#include <cstdint>
#include <vector>

#include "ref/norm_backward_model.h"
#include "ref/norm_ref.h"

namespace fastnorm::ref {

// Bounds of dx or dresidual of a row. Empty if a value or statistic is not finite, or leaves the
// range where relative errors have a meaning. Then only the model gives the result. `stored` is the
// output's dtype.
std::vector<Range> norm_backward_row_bounds(const NormBackwardOptions& options,
                                            const NormBackwardRow& row, Order order, Type stored);

// Bounds of dbranch, for the same rows. dx and dresidual of a call with a branch are r, which
// norm_backward_row_bounds() gives.
std::vector<Range> norm_backward_dbranch_bounds(const NormBackwardOptions& options,
                                                const NormBackwardRow& row, Order order,
                                                Type stored);

// Bounds of dgate, for the same rows.
std::vector<Range> norm_backward_dgate_bounds(const NormBackwardOptions& options,
                                              const NormBackwardRow& row, Order order, Type stored);

// The dtype of a weight's gradient, and the old value that is added.
struct StoredSum {
  Type dtype = Type::kF32;
  const float* old = nullptr;  // [n], null = nothing
};

// Bounds of dweight and dbias. An element without bounds has -Inf to Inf.
std::vector<Range> norm_backward_dweight_bounds(const NormBackwardOptions& options, int64_t rows,
                                                int64_t n, const NormBackwardRows& row_of,
                                                const StoredSum& stored);
std::vector<Range> norm_backward_dbias_bounds(const NormBackwardOptions& options, int64_t rows,
                                              int64_t n, const NormBackwardRows& row_of,
                                              const StoredSum& stored);

// Bounds of the branch's sums over rows. `order` is that of sums along a row.
struct BranchSumBounds {
  std::vector<Range> dweight, dbias, dresidual_gate;
};
struct StoredBranchSums {
  const StoredSum *dweight = nullptr, *dbias = nullptr, *dresidual_gate = nullptr;  // null: none
};
BranchSumBounds norm_backward_branch_sum_bounds(const NormBackwardOptions& options, int64_t rows,
                                                int64_t n, const NormBackwardRows& row_of,
                                                Order order, const StoredBranchSums& stored);

}  // namespace fastnorm::ref
