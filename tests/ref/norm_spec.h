// One row to normalise, in the words of the specification: what model and reference are given.
#pragma once

#include <cstdint>

#include "ref/dtype.h"

namespace fastnorm::ref {

enum class Kind : uint8_t { kRms, kLayer };

// Where intermediate values are rounded to x's dtype T. kOnceRw: nowhere, as kOnce, but the weight
// is multiplied by rstd before x is.
enum class Rounding : uint8_t { kOnce, kNormalized, kEveryStep, kOnceRw };
inline constexpr int kRoundings = 4;

// Which value of x + residual, rounded to R, feeds the statistics and is normalised.
enum class ResidualRounding : uint8_t { kExact, kBeforeApply, kBeforeStatistics };

struct NormOptions {
  Type dtype = Type::kF32;  // T
  Kind kind = Kind::kRms;
  Rounding rounding = Rounding::kOnce;
  ResidualRounding residual_rounding = ResidualRounding::kExact;
  Type sum_dtype = Type::kF32;  // R
  float eps = 0;
  float weight_offset = 0;
  bool y_f32 = false;  // y is f32 whatever T is

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

// The order in which a row is summed: the two canonical ones, and wrong ones that a test must be able to tell apart.
enum class Order : uint8_t {
  kGpu,
  kCpu,
  kSequential,      // one chain over the row
  kGpuLowestFirst,  // the vectors' tree combines neighbours first
  kCpuLowestFirst,  // the 64 accumulators' tree likewise
};

}  // namespace fastnorm::ref
