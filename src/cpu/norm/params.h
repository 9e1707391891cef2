// The parameters of a forward kernel: one plain struct for every kernel and instruction set. It has
// no inline functions. Units with different instruction sets include it, and the linker would keep
// one copy for all of them.
#pragma once

#include <cstdint>

#include "core/common/quant_types.h"

namespace fastnorm::cpu {

inline constexpr int kRowDims = 3;

// A tensor with one row (or value) for each row of x.
struct RowRef {
  char* data;                      // nullptr if an optional tensor is absent
  int64_t stride_bytes[kRowDims];  // for each digit of a row number, the fastest first
};

// A weight or bias: one value for each column.
struct WeightRef {
  const char* data;
  int64_t stride_bytes[kRowDims];  // for each digit of a row number; 0 = shared
};

// The dtype of an operand: x's (kElement), or another one by name.
enum class OperandType : uint8_t { kAbsent, kElement, kF32, kF16, kBF16 };

// What is quantised, and how.
struct QuantParams {
  RowRef codes;              // [rows, n] bytes; e2m1: [rows, n / 2]
  RowRef scale;              // [rows, scales of a row]
  int64_t scale_step_bytes;  // from one scale of a row to the next; swizzled: tiles across a row
  int64_t rows;              // of the call, for the padding of swizzled scales
  const char* tensor_scale;  // f32; nullptr = scales are computed
  const char* global_scale;  // f32; nullptr = 1
  const char* clamp_scale;   // f32; nullptr = as `clamp` says
  char* amax;                // f32; nullptr = not wanted
  int32_t block;             // columns that share a scale; 0 = the row
  float clamp;               // 0 = off
  float amax_floor;
  CodeType code_type;
  ScaleType scale_type;
  bool codes_wanted, from_rounded, pow2, swizzled, nvfp4;
  bool divides;          // codes are quotients by the scale
  bool y_rotated;        // y is, as what is quantised
  int32_t rotation;      // columns of a block that is rotated; 0 = none
  const char* signs;     // f32, of the columns before that; nullptr = 1
  int64_t sign_columns;  // that are in memory: the row's, or a block's
};

struct NormParams {
  RowRef x, residual, y, residual_out;  // [rows, n]
  RowRef mean, rstd;                    // [rows]
  WeightRef weight, bias;
  int64_t n;
  int64_t outer[kRowDims];  // extents of the digits of a row number
  float inv_n;
  float eps;
  float weight_offset;
  OperandType weight_type, bias_type;
  bool stream;    // streaming stores
  bool prefetch;  // prefetches the next row while it writes this one
  // Also computes its statistics. y then begins on 64-byte boundaries and has streaming stores.
  bool read_ahead;
  QuantParams quant;  // for Sink::kQuant only
  // Only for Affine::kAny:
  bool layer;  // the statistic, for kernels that have both
  bool plain;  // none of the fields below is set, so a kernel for kOnce can be used
  bool every_step, round_normalized, factor_first;  // of fastnorm_rounding
  bool round_summed, round_applied;  // of fastnorm_residual_rounding, if it rounds to 16 bits
  OperandType sum_type;              // the dtype that the addition rounds to
  OperandType residual_type, residual_out_type, y_type;
};

// Normalises the rows [begin, end). Requires rounding to nearest, and subnormals kept.
using NormKernel = void (*)(const NormParams& params, int64_t begin, int64_t end);

}  // namespace fastnorm::cpu
