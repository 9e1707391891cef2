// The parameters of a CPU kernel of norm_heads. Plain data: units of any instruction set may
// include it.
#pragma once

#include <cstdint>

#include "cpu/norm/params.h"

namespace fastnorm::cpu {

inline constexpr int kHeadsParts = 8, kRopeAxes = 4, kHeadColumns = 8192;

// Values for tokens and heads.
struct HeadRef {
  char* data;  // nullptr = absent
  int64_t token_stride, head_stride;
};

struct HeadsCacheParams {
  RowRef rows;  // data nullptr = absent; strides of the digits of (head, row of a page, page)
  QuantParams quant;
  int64_t page_size;
  bool codes;   // otherwise elements of x's dtype
  RowRef tail;  // elements of the last columns; data nullptr = absent
  int64_t tail_columns;
};

// How rope rotates a part's rows.
struct PartRope {
  int64_t rope_offset;
  bool rope, interleaved, inverse, rope_every_step;
};

struct NormHeadsPartParams : PartRope {
  NormParams norm;        // of rows (token, head)
  NormParams statistics;  // the same, with n and inv_n of the elements that share a statistic
  int64_t heads;
  int64_t head_stride, token_stride;  // of x, in bytes
  HeadRef mean, rstd, mean_in, rstd_in, sumsq;
  HeadRef weights, weights_out;  // see head_weights in the header
  OperandType weights_type;
  float weights_factor;
  HeadsCacheParams cache;
  bool normalise, layer, across_heads, stores_rows;
  bool round_before_rope;
};

struct RopeTableRef {
  const char* data;
  int64_t head_stride, row_stride;
};

// i32 or i64; data nullptr = absent.
struct IndexRef {
  const char* data;
  int64_t axis_stride, stride;
  bool wide;
};

struct RopeParams {
  int32_t axes;
  int64_t half;  // pairs that rope rotates
  RopeTableRef cos, sin;
  bool table_f32;      // otherwise x's dtype
  bool table_repeats;  // 2 * half wide
  bool mrope_interleaved;
  int64_t section_end[kRopeAxes];
  IndexRef positions;
};

struct NormHeadsParams : RopeParams {
  NormHeadsPartParams part[kHeadsParts];
  int32_t count;
  IndexRef slots;      // absent: no token before slot_count is padding
  int64_t slot_count;  // tokens from here on are padding
};

// The tokens [begin, end).
using NormHeadsKernel = void (*)(const NormHeadsParams& params, int64_t begin, int64_t end);

// By Dtype: f32, f16, bf16.
struct NormHeadsKernels {
  NormHeadsKernel at[3];
};

extern const NormHeadsKernels kNormHeadsScalar;
extern const NormHeadsKernels kNormHeadsAvx2;
extern const NormHeadsKernels kNormHeadsAvx512;
extern const NormHeadsKernels kNormHeadsNeon;

}  // namespace fastnorm::cpu
