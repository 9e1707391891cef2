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
};

// All values exactly as stored, in f32.
struct NormBackwardRow {
  int64_t n = 0;
  const float* dy = nullptr;            // [n]
  const float* x = nullptr;             // [n]
  const float* weight = nullptr;        // [n], null = 1
  const float* dresidual_in = nullptr;  // [n], null = none
  float mean = 0, rstd = 0;
  const float* gate = nullptr;  // [n], null = none
  const float* bias = nullptr;  // [n], null = 0
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

// The order in which rows are added to dweight and dbias: the specified one, and a wrong one that a
// test must detect.
enum class RowOrder : uint8_t { kSpecified, kSequential };

// dweight [n] and dbias [n]; each may be null. The sums over `rows` rows are added to an old value
// and stored with one rounding. The order is the same on every backend.
void norm_backward_sums_model(const NormBackwardOptions& options, int64_t rows, int64_t n,
                              const NormBackwardRows& row_of, float* dweight, float* dbias,
                              RowOrder order = RowOrder::kSpecified);

}  // namespace fastnorm::ref
