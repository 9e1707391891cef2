// One row to normalise, in the terms of the specification: the input of model and reference.
#pragma once

#include <cstdint>

#include "ref/dtype.h"

namespace fastnorm::ref {

enum class Kind : uint8_t { kRms, kLayer };

// Where intermediate values are rounded to x's dtype T. kOnceRw rounds nowhere, like kOnce, but
// multiplies the weight by rstd before x.
enum class Rounding : uint8_t { kOnce, kNormalized, kEveryStep, kOnceRw };
inline constexpr int kRoundings = 4;

// Which value of x + residual, rounded to R, the statistics and the normalisation use.
enum class ResidualRounding : uint8_t { kExact, kBeforeApply, kBeforeStatistics };

struct NormOptions {
  Type dtype = Type::kF32;  // T
  Kind kind = Kind::kRms;
  Rounding rounding = Rounding::kOnce;
  ResidualRounding residual_rounding = ResidualRounding::kExact;
  Type sum_dtype = Type::kF32;  // R
  float eps = 0;
  float weight_offset = 0;
  bool y_f32 = false;  // y has f32 for every T

  Type y_dtype() const { return y_f32 ? Type::kF32 : dtype; }
};

// All values exactly as stored, in f32.
struct NormRow {
  int64_t n = 0;
  const float* x = nullptr;         // [n]
  const float* residual = nullptr;  // [n], may be null
  const float* weight = nullptr;    // [n], null = 1
  const float* bias = nullptr;      // [n], null = 0
};

// The order in which a row is summed: the two canonical ones, and wrong ones that a test must
// detect.
enum class Order : uint8_t {
  kGpu,
  kCpu,
  kSequential,      // one chain over the row
  kGpuLowestFirst,  // the tree over vectors combines neighbours first
  kCpuLowestFirst,  // the tree over the 64 accumulators combines neighbours first
};

}  // namespace fastnorm::ref
