// The backward arithmetic as a scalar single-precision program, operation by operation. A backend
// must equal it bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ref/activation.h"
#include "ref/norm_model.h"
#include "ref/norm_spec.h"

namespace fastnorm::ref {

// The forward's addition of a branch to a residual; x is its stored residual_out.
struct NormBackwardBranch {
  bool normalise = false;  // branch_norm; otherwise the fields up to `rounded` do not count
  Kind kind = Kind::kRms;
  Rounding rounding = Rounding::kOnce;
  float eps = 0;
  float weight_offset = 0;
  bool rounded = false;  // what is added is rounded to T
  Activation act = Activation::kIdentity;
  float alpha = 1;
  float sum_scale = 1;
};

struct NormBackwardOptions {
  Type dtype = Type::kF32;    // T, of dx and the forward's x
  Type x_dtype = Type::kF32;  // of the x argument: determines the order of sums along a row
  Kind kind = Kind::kRms;
  Rounding rounding = Rounding::kOnce;
  float eps = 0;
  float weight_offset = 0;
  Activation gate_act = Activation::kIdentity;
  bool gate_before = false;
  bool gate_from_rounded = false;
  NormBackwardBranch branch;
};

// All values exactly as stored, in f32.
struct NormBackwardRow {
  int64_t n = 0;
  const float* dy = nullptr;            // [n]
  const float* x = nullptr;             // [n]
  const float* weight = nullptr;        // [n], null = 1
  const float* dresidual_in = nullptr;  // [n], null = none
  float mean = 0, rstd = 0;
  const float* gate = nullptr;           // [n], null = none
  const float* bias = nullptr;           // [n], null = 0
  const float* branch = nullptr;         // [n]
  const float* branch_weight = nullptr;  // [n], null = 1
  const float* branch_bias = nullptr;    // [n], null = 0
  const float* residual_gate = nullptr;  // [n], null = 1
  float branch_mean = 0, branch_rstd = 0;
};

// Row i of the rows that share a row of the weight.
using NormBackwardRows = std::function<NormBackwardRow(int64_t i)>;

// The statistics of a forward of x without a residual. `gate`: null where none comes before them.
void norm_backward_statistics(const NormBackwardOptions& options, const float* x, int64_t n,
                              Order order, ModelScratch* scratch, float* mean, float* rstd,
                              const float* gate = nullptr);

// dh [n]. dx and dresidual are dh, rounded once. With a gate before the norm it is dx alone. dgate
// [n] may be null.
void norm_backward_row_model(const NormBackwardOptions& options, const NormBackwardRow& row,
                             Order order, float* dh, float* dgate = nullptr);

// The norm of the branch as a call of its own, without dy.
NormBackwardOptions norm_backward_branch_options(const NormBackwardOptions& options);
NormBackwardRow norm_backward_branch_row(const NormBackwardRow& row);

// r [n], of which dx and dresidual are made, and dbranch [n], which may be null.
void norm_backward_branch_model(const NormBackwardOptions& options, const NormBackwardRow& row,
                                Order order, float* r, float* dbranch);

// dbranch_weight, dbranch_bias and dresidual_gate [n], as norm_backward_sums_model() has the other
// sums. Each may be null. `order` is that of sums along a row.
void norm_backward_branch_sums_model(const NormBackwardOptions& options, int64_t rows, int64_t n,
                                     const NormBackwardRows& row_of, Order order, float* dweight,
                                     float* dbias, float* dresidual_gate);

// The order in which rows are added to dweight and dbias: the specified one, and a wrong one that a
// test must detect.
enum class RowOrder : uint8_t { kSpecified, kSequential };

// dweight [n] and dbias [n]; each may be null. The sums over `rows` rows are added to an old value
// and stored with one rounding. The order is the same on every backend.
void norm_backward_sums_model(const NormBackwardOptions& options, int64_t rows, int64_t n,
                              const NormBackwardRows& row_of, float* dweight, float* dbias,
                              RowOrder order = RowOrder::kSpecified);

}  // namespace fastnorm::ref
