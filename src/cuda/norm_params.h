// What a forward kernel gets: one struct by value, the same for every kernel. CUDA-free.
#pragma once

#include <cstdint>

#include "core/norm_key.h"
#include "core/quant_types.h"

namespace fastnorm::cuda {

// A tensor with one row (or value) for each row of x.
struct RowRef {
  char* data;         // may be nullptr where the tensor is optional
  int64_t stride[3];  // bytes for each index of the row map, innermost first
};

// A tensor with one value for each column.
struct ColumnRef {
  const char* data;     // [n] or [heads, n]
  int64_t head_stride;  // bytes; 0 = shared by all rows
};

// Quotient of a row number below 2^31 by a divisor of at least 2: (row * multiplier) >> 32 >> shift.
struct Divisor {
  uint32_t value;
  uint32_t multiplier;
  uint32_t shift;
};

enum class ColumnType : int32_t { kAbsent, kElement, kF32 };  // kElement: x's dtype

// Where a kernel that may have started early waits for the stream's previous one.
enum class GridWait : int32_t {
  kNone,
  kFirst,
  kAfterColumns
};  // kAfterColumns may wait first, too

// What is quantised, and how.
struct QuantParams {
  RowRef codes;               // [rows, n] bytes; e2m1: [rows, n / 2]
  RowRef scale;               // [rows, scales of a row]
  int64_t scale_step;         // bytes from a row's scale to its next; swizzled: tiles across a row
  const float* tensor_scale;  // nullptr = scales are made here
  const float* global_scale;  // nullptr = 1
  float* amax;                // nullptr = not wanted
  int32_t block;              // columns that share a scale; 0 = the row
  int32_t block_shift;        // log2 of block
  float clamp;                // 0 = off
  float amax_floor;
  CodeType code_type;
  ScaleType scale_type;
  bool codes_wanted, codes_aligned, from_rounded, pow2, swizzled, nvfp4;
};

// Ordered by first use: the first lines of the constant bank are all that a block must wait for before its loads.
struct NormParams {
  int32_t outer_rank;  // 1: row r is index r
  uint32_t rows;
  int32_t vectors;  // 16-byte vectors of x's dtype in a row, the last may be short
  ColumnType weight_type, bias_type;
  int32_t stream_loads;    // 1: read past L1
  uint32_t prefetch_rows;  // the row this many rows ahead is brought into L2; 0 = none
  GridWait wait;
  int32_t trigger;  // 1: the stream's next kernel may start early
  ColumnRef weight, bias;
  RowRef x, residual, residual_out;  // [rows, n]
  float inv_n;
  float eps;
  float weight_offset;
  uint32_t zero;      // 0, which the compiler cannot know
  int32_t wide_rows;  // 1: row numbers reach 2^31, where multiplying does not divide
  RowRef y;           // [rows, n]
  RowRef mean, rstd;  // [rows]
  int64_t n;
  Divisor outer[2];  // extents of the two inner dimensions, where outer_rank is 2 or 3
  // For any access only.
  uint8_t rounding, residual_rounding;     // as in the public header
  uint8_t residual_f32, residual_out_f32;  // dtype f32 and not x's
  uint8_t x_align, residual_align, y_align, residual_out_align, weight_align,
      bias_align;     // bytes that all rows allow: 16, 8, 4 or 2
  QuantParams quant;  // for Sink::kQuant only
};

// Several calls of one kernel.
struct NormManyParams {
  int32_t count;
  uint32_t first_block[kMaxCalls];  // of each call in the grid; after the last call the grid's end
  NormParams call[kMaxCalls];
};
static_assert(sizeof(NormManyParams) <= 4096);  // what a launch takes on every driver

}  // namespace fastnorm::cuda
