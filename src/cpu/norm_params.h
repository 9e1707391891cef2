// What a forward kernel gets: one plain struct, the same for every kernel and instruction set. No inline functions: the units that
// include this are compiled for different instruction sets, and the linker would keep one copy for all of them.
#pragma once

#include <cstdint>

#include "core/quant_types.h"

namespace fastnorm::cpu {

inline constexpr int kRowDims = 3;

// A tensor with one row (or value) for each row of x.
struct RowRef {
  char* data;                      // may be nullptr where the tensor is optional
  int64_t stride_bytes[kRowDims];  // for each digit of a row number, the fastest first
};

// A tensor with one value for each column.
struct WeightRef {
  const char* data;
  int64_t stride_bytes[kRowDims];  // for each digit of a row number; 0 = the same for all
};

// The dtype of a row or a column: x's (kElement), or one of the others by its name.
enum class OperandType : uint8_t { kAbsent, kElement, kF32, kF16, kBF16 };

// What is quantised, and how.
struct QuantParams {
  RowRef codes;              // [rows, n] bytes; e2m1: [rows, n / 2]
  RowRef scale;              // [rows, scales of a row]
  int64_t scale_step_bytes;  // from a row's scale to its next; swizzled: tiles across a row
  int64_t rows;              // of the call, for the padding of swizzled scales
  const char* tensor_scale;  // f32; nullptr = scales are made here
  const char* global_scale;  // f32; nullptr = 1
  const char* clamp_scale;   // f32; nullptr = `clamp` decides
  char* amax;                // f32; nullptr = not wanted
  int32_t block;             // columns that share a scale; 0 = the row
  float clamp;               // 0 = off
  float amax_floor;
  CodeType code_type;
  ScaleType scale_type;
  bool codes_wanted, from_rounded, pow2, swizzled, nvfp4;
  bool divides;  // codes are quotients by the scale
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
  bool stream;    // store past the caches
  bool prefetch;  // the next row while this one is written
  bool
      read_ahead;  // and sum it: y begins on 64-byte boundaries then, and is stored past the caches
  QuantParams quant;  // for Sink::kQuant only
  // For Affine::kAny only.
  bool plain;  // none of what follows is set: a kernel for kOnce will do
  bool every_step, round_normalized, factor_first;  // of fastnorm_rounding
  bool round_summed, round_applied;  // of fastnorm_residual_rounding, where it rounds to 16 bits
  OperandType sum_type;              // what it rounds to
  OperandType residual_type, residual_out_type, y_type;
};

// Normalises the rows [begin, end). Expects rounding to nearest and no flushing of subnormals.
using NormKernel = void (*)(const NormParams& params, int64_t begin, int64_t end);

}  // namespace fastnorm::cpu
