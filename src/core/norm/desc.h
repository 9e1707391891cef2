// One normalisation in canonical form: what the checks make of the caller's tensors, for planning,
// kernels and tests. Rows are flattened, leading dimensions folded, strides in bytes, defaults
// filled in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/common/dtype.h"
#include "core/common/quant_scheme.h"
#include "core/common/quant_types.h"
#include "fastnorm/norm.h"

namespace fastnorm {

// Whether the normalised row is rounded to T before its weight.
constexpr bool rounds_normalized(fastnorm_rounding rounding) {
  return rounding == FASTNORM_ROUND_NORMALIZED || rounding == FASTNORM_ROUND_EVERY_STEP;
}

inline constexpr int kMaxOuter = 3;  // leading dimensions of a rank-4 tensor

// A tensor with one row, or one value, for each row of x. Row r is at data + sum(index[d] *
// stride_bytes[d]). The indices are the digits of r in base outer[], index[0] the fastest: r =
// index[0] + outer[0] * (index[1] + outer[1] * index[2]).
struct RowTensor {
  std::byte* data = nullptr;  // nullptr = absent
  int64_t stride_bytes[kMaxOuter] = {};
  Dtype dtype = Dtype::kUnknown;

  explicit operator bool() const { return data != nullptr; }
};

// A weight or bias: one value for each column. All rows share it, or it has a row for each index of
// some leading dimensions.
struct WeightTensor {
  const std::byte* data = nullptr;             // nullptr = absent
  int64_t head_stride_bytes = 0;               // along index[0]; 0 = shared
  int64_t outer_stride_bytes[kMaxOuter] = {};  // along index[1] and index[2]; [0] is 0
  Dtype dtype = Dtype::kUnknown;

  int64_t stride_bytes(int dim) const {
    return dim == 0 ? head_stride_bytes : outer_stride_bytes[dim];
  }
  void set_stride_bytes(int dim, int64_t stride) {
    (dim == 0 ? head_stride_bytes : outer_stride_bytes[dim]) = stride;
  }
  explicit operator bool() const { return data != nullptr; }
};

// What is quantised, and how.
struct QuantDesc {
  fastnorm_quant_scheme scheme = FASTNORM_QUANT_NONE;
  Dtype dtype = Dtype::kUnknown;  // of the codes: f8_e4m3fn, f8_e5m2, i8 or f4_e2m1fn
  int32_t block = 0;              // columns that share a scale; 0 = the row or the tensor
  bool from_rounded =
      false;  // quantises the result after rounding to x's dtype; without codes, amax is that of y
  bool pow2 = false;      // scales are powers of two
  bool divides = false;   // z / scale; otherwise z * (1 / scale), the same with pow2
  bool swizzled = false;  // scales in tiles of 128 rows x 4, padding zeroed
  float clamp = 0;        // 0 = off, or as clamp_scale says
  float amax_floor = 0;
  RowTensor codes;                          // rows of n bytes; f4: n / 2
  RowTensor scale;                          // outputs: ceil(n / block) scales for a row, or one
  int64_t scale_step_bytes = 0;             // from a scale of a row to the next
  const std::byte* tensor_scale = nullptr;  // f32, an input; PER_TENSOR
  const std::byte* global_scale = nullptr;  // f32, an input; nullptr = 1
  const std::byte* clamp_scale = nullptr;   // f32, an input; clamps if it is > 0
  std::byte* amax = nullptr;                // f32, in and out; nullptr = not wanted
  int32_t rotation = 0;       // columns that a Hadamard matrix multiplies together; 0 = none
  bool y_rotated = false;     // y is, too
  bool signs_shared = false;  // every block has the same ones
  WeightTensor signs;         // f32, of the columns before the rotation

  bool is_mx() const { return scheme_of(scheme).is_mx(); }
  bool is_fp4() const { return scheme_of(scheme).is_fp4(); }
  CodeType code_type() const {
    return dtype == Dtype::kF8E4M3   ? CodeType::kE4M3
           : dtype == Dtype::kF8E5M2 ? CodeType::kE5M2
           : dtype == Dtype::kI8     ? CodeType::kI8
                                     : CodeType::kE2M1;
  }
  ScaleType scale_type() const {
    return scheme_of(scheme).scale == SchemeScale::kE4M3 ? ScaleType::kE4M3
           : scale.dtype == Dtype::kF32                  ? ScaleType::kF32
                                                         : ScaleType::kE8M0;
  }
  // From one scale of a row to the next, in bytes. Swizzled: tiles across a row.
  int64_t scale_step(int64_t n) const { return swizzled ? scale_tiles(n) : scale_step_bytes; }
  // True if the call wants more than codes and scales of the unmodified results.
  bool has_extras() const {
    return from_rounded || clamp != 0.0f || clamp_scale != nullptr || amax != nullptr || divides;
  }
  // Signs that are in memory.
  int64_t sign_columns(int64_t n) const { return signs_shared ? rotation : n; }
  int64_t scales(int64_t n) const { return block == 0 ? 1 : (n + block - 1) / block; }
  // Bytes of a row of codes.
  int64_t code_bytes(int64_t n) const { return dtype == Dtype::kF4E2M1 ? n / 2 : n; }
  // Swizzled scales: tiles of 4 scales across a row, and bytes of all tiles of 128 rows.
  int64_t scale_tiles(int64_t n) const { return (scales(n) + 3) / 4; }
  int64_t swizzled_bytes(int64_t rows, int64_t n) const {
    return (rows + 127) / 128 * 512 * scale_tiles(n);
  }
  // True if the sink does more than store y.
  bool any() const { return scheme != FASTNORM_QUANT_NONE || amax != nullptr; }
};

// A factor or a summand of rows: broadcast against x, or taken by an index.
struct Modulator {
  RowTensor rows;            // of n elements, or of one; without strides where there is an index
  bool single = false;       // one element for all columns
  int64_t index_rows = 0;    // with an index: how many it may take
  int64_t index_stride = 0;  // bytes from one to the next
  WeightTensor table;        // n elements that are added; shared by all rows

  int64_t columns(int64_t n) const { return single ? 1 : n; }
  explicit operator bool() const { return static_cast<bool>(rows); }
};

// What a call does besides the norm: gates, groups, sums for other devices. The columns of a group
// share a statistic. Without groups, the row is one group.
struct StagesDesc {
  RowTensor gate;                     // rows of n elements
  RowTensor mean_in, rstd_in, sumsq;  // f32: one value for each group; LAYER's sumsq: two
  fastnorm_activation gate_act = FASTNORM_ACTIVATION_IDENTITY;
  fastnorm_activation activation = FASTNORM_ACTIVATION_IDENTITY;
  bool gate_before = false;        // the gate is applied before the statistics
  bool gate_from_rounded = false;  // a gate after the norm multiplies the result rounded to T
  int64_t group = 0;               // columns of a group
  int64_t groups = 1;              // of a row
  // The norm of the branch before the residual addition, and that addition.
  bool branch = false;
  fastnorm_norm_kind branch_kind = FASTNORM_NORM_RMS;
  fastnorm_rounding branch_rounding = FASTNORM_ROUND_ONCE;
  float branch_eps = 0, branch_weight_offset = 0;
  bool branch_rounded = false;           // to T, before the addition
  bool scaled = false;                   // by alpha, if alpha is not 1
  bool sum_every_step = false;           // each step of the addition is rounded to T
  float alpha = 1;                       // factor of the branch
  const std::byte* sum_scale = nullptr;  // f32, an input; nullptr = 1
  WeightTensor branch_weight, branch_bias;
  RowTensor branch_rstd;                            // f32, one value for each row
  bool weight_shared = false, bias_shared = false;  // all groups share one row of `group` values
  // Factor of the branch; factor (less 1, but for plain_scale) and summand of the normalised row.
  Modulator residual_gate, modulation_scale, modulation_shift;
  RowTensor modulation_index;  // i32 or i64, a value a row
  fastnorm_activation residual_gate_act = FASTNORM_ACTIVATION_IDENTITY;
  bool plain_scale = false;
  bool modulation_every_step = false;  // rounded to T

  bool modulates() const { return modulation_scale || modulation_shift; }
};

struct NormDesc {
  int64_t rows = 0;
  int64_t n = 0;
  int32_t outer_rank = 1;                // dimensions of outer in use, 1 to 3
  int64_t outer[kMaxOuter] = {1, 1, 1};  // innermost first; the product is rows
  Dtype dtype = Dtype::kF32;             // T: of x; y has T or f32
  fastnorm_norm_kind kind = FASTNORM_NORM_RMS;
  fastnorm_rounding rounding = FASTNORM_ROUND_ONCE;
  fastnorm_residual_rounding residual_rounding = FASTNORM_RESIDUAL_EXACT;
  Dtype sum_dtype = Dtype::kF32;  // R: the dtype that residual_rounding rounds to
  float eps = 0;
  float weight_offset = 0;
  float inv_n = 0;                         // f32(1 / f32(n)); n of a group
  uint32_t flags = 0;                      // fastnorm_norm_flags
  RowTensor x, residual, y, residual_out;  // rows of n elements
  RowTensor mean, rstd;                    // f32, one value for each row or group
  WeightTensor weight, bias;               // row r uses the row of its indices
  bool weights_outside = false;            // one of them varies along index[1] or index[2]
  QuantDesc quant;
  void* parallel_user = nullptr;  // of the caller's parallel loop; nullptr = the context's
  bool has_stages = false;
  StagesDesc stages;  // unspecified unless has_stages

  int64_t groups() const { return has_stages ? stages.groups : 1; }
  // Columns that weight and bias have in memory.
  int64_t weight_columns() const { return has_stages && stages.weight_shared ? stages.group : n; }
  int64_t bias_columns() const { return has_stages && stages.bias_shared ? stages.group : n; }
};

}  // namespace fastnorm
