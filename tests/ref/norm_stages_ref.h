// A row with stages: gate, groups, activation, given statistics. A scalar single-precision program
// that a backend must equal bit for bit, and the specification in double with how far a
// single-precision result may lie from it.
#pragma once

#include <cstdint>
#include <vector>

#include "ref/norm_model.h"
#include "ref/norm_ref.h"
#include "ref/norm_spec.h"

namespace fastnorm::ref {

enum class Activation : uint8_t { kIdentity, kSilu, kSigmoid, kTanh };

struct StagesOptions {
  NormOptions norm;
  Activation gate_act = Activation::kIdentity, activation = Activation::kIdentity;
  bool gate_before = false;
  bool gate_from_rounded = false;
  int64_t group = 1;    // columns, a divisor of n
  bool branch = false;  // x is normalised before the residual is added
  NormOptions of_branch;
  bool branch_rounded = false;  // to T, then
  bool scaled = false;          // the branch, by alpha
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
  NormRow row;                  // of all columns; weight and bias as the next two say
  bool weight_shared = false;   // [group], else [n]
  bool bias_shared = false;     // likewise
  const float* gate = nullptr;  // [n], may be null
  const float *branch_weight = nullptr, *branch_bias = nullptr;  // [n], null = 1, 0
  const float* sum_scale = nullptr;                              // [1], null = 1
  ModulatorRow residual_gate, scale, shift;
  const float *mean_in = nullptr, *rstd_in = nullptr;  // [n / group], null = computed
};

// `sum` and `z` are stored by rounding them once to the dtype of residual_out and y.
struct StagesResult {
  std::vector<float> mean, rstd;  // [n / group]
  std::vector<float> sumsq;       // [n / group], LAYER: [n / group, 2]
  std::vector<float> sum, z;      // [n]
  float branch_rstd = 0;
};

void stages_model(const StagesOptions& options, const StagesRow& row, Order order,
                  ModelScratch* scratch, StagesResult* result);

// Where y may lie, of rows that are rounded once and whose sum is not; empty where a statistic
// leaves the range in which relative errors mean something, or where others are asked for.
std::vector<Range> stages_bounds(const StagesOptions& options, const StagesRow& row, Order order);

}  // namespace fastnorm::ref
