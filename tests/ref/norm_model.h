// The specified arithmetic as a scalar single-precision program, operation by operation. A backend
// must equal it bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "ref/norm_spec.h"

namespace fastnorm::ref {

// The results of a row. Storing `sum` and `z` rounds them once to the dtype of residual_out and y.
struct NormResult {
  float mean = 0;  // LAYER only
  float rstd = 0;
  std::vector<float> sum;  // [n] x + residual, or x
  std::vector<float> z;    // [n]
};

// Memory that model runs reuse.
struct ModelScratch {
  std::vector<float> a, d, partial;
};

void norm_model(const NormOptions& options, const NormRow& row, Order order, ModelScratch* scratch,
                NormResult* result);

// The part after the statistics: z [n] from mean and rstd.
void norm_tail(const NormOptions& options, const NormRow& row, float mean, float rstd, float* z);

// The sum of a row in canonical order: of values, or of products d * d that are added by fma.
float ordered_sum(Order order, Type dtype, const float* values, int64_t n,
                  std::vector<float>* partial);
float ordered_sum_of_squares(Order order, Type dtype, const float* values, int64_t n,
                             std::vector<float>* partial);

}  // namespace fastnorm::ref
