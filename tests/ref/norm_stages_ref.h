// A row with stages: gate, groups, activation, passed statistics. A scalar single-precision program
// that a backend must equal bit for bit. Also the specification in double, and how far a
// single-precision result may be from it.
#pragma once

#include <cstdint>
#include <vector>

#include "ref/activation.h"
#include "ref/norm_model.h"
#include "ref/norm_ref.h"
#include "ref/norm_spec.h"

namespace fastnorm::ref {

struct StagesOptions {
  NormOptions norm;
  Activation gate_act = Activation::kIdentity, activation = Activation::kIdentity;
  bool gate_before = false;
  bool gate_from_rounded = false;
  int64_t group = 1;    // columns, a divisor of n
  bool branch = false;  // x is normalised before the residual is added
  NormOptions of_branch;
  bool branch_rounded = false;  // to T, then:
  bool scaled = false;          // the branch is multiplied by alpha
  float alpha = 1;
  bool sum_every_step = false;  // rounded to T
  Activation residual_gate_act = Activation::kIdentity;
  bool plain_scale = false;            // the modulation's factor has no 1 +
  bool modulation_every_step = false;  // rounded to T
};

// A factor or a summand of each column, and what is added to it.
struct ModulatorRow {
  const float *values = nullptr, *table = nullptr;  // [n], may be null
};

struct StagesRow {
  NormRow row;  // of all columns; the next two fields tell the size of weight and bias
  bool weight_shared = false;                                    // [group], else [n]
  bool bias_shared = false;                                      // the same for bias
  const float* gate = nullptr;                                   // [n], may be null
  const float *branch_weight = nullptr, *branch_bias = nullptr;  // [n], null = 1, 0
  const float* sum_scale = nullptr;                              // [1], null = 1
  ModulatorRow residual_gate, scale, shift;
  const float *mean_in = nullptr, *rstd_in = nullptr;  // [n / group], null = computed
};

// Storing `sum` and `z` rounds them once to the dtype of residual_out and y.
struct StagesResult {
  std::vector<float> mean, rstd;  // [n / group]
  std::vector<float> sumsq;       // [n / group], LAYER: [n / group, 2]
  std::vector<float> sum, z;      // [n]
  float branch_rstd = 0;
};

void stages_model(const StagesOptions& options, const StagesRow& row, Order order,
                  ModelScratch* scratch, StagesResult* result);

// Bounds of y for rows that are rounded once, without rounding of x + residual. Empty if a
// statistic leaves the range where relative errors have a meaning, or for other roundings.
std::vector<Range> stages_bounds(const StagesOptions& options, const StagesRow& row, Order order);

}  // namespace fastnorm::ref
