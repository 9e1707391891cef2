// What a backward kernel of the CPU gets: plain data, so that units of any instruction set may
// include it.
#pragma once

#include <cstdint>

#include "core/common/dtype.h"
#include "cpu/norm/params.h"
#include "cpu/norm_stages/params.h"

namespace fastnorm::cpu {

// dweight or dbias.
struct SumRef {
  char* data;  // nullptr = not wanted
  int64_t stride_bytes[kRowDims];
  Dtype dtype;
  bool accumulate;
  // [groups][blocks][partial_stride], in the layout of x's pairs; of heads with own kernels in the
  // order of the columns.
  float* partial;
};

// The branch of a call. Its dtype is T.
struct BranchParams {
  RowRef branch, dbranch;              // [rows, n]
  RowRef mean, rstd;                   // [rows]; rstd.data nullptr = both are computed
  RowRef weight, bias, residual_gate;  // data nullptr = 1, 0, 1
  SumRef dweight, dbias, dresidual_gate;
  const char* sum_scale;  // f32; nullptr = 1
  float eps, weight_offset, alpha;
  Activation act;
  Dtype weight_dtype, bias_dtype, residual_gate_dtype;
  bool present;
  bool normalise, layer;  // rows of the branch are normalised for some output
  bool every_step;        // as NormBackwardParams's, of the branch
  bool round_xhat;        // to T, in dweight
  bool round_result;      // to T, what is added to the residual
};

// Rows are numbered as in core/norm_backward/desc.h: row i of group g is i + shared_rows * g.
struct NormBackwardParams {
  RowRef dy, x, dresidual_in, dx, dresidual;  // [rows, n]
  RowRef mean, rstd;                          // [rows]; rstd.data nullptr = both are computed
  RowRef weight;                              // data nullptr = 1
  RowRef gate, dgate;                         // [rows, n]
  RowRef bias;                                // of the forward, for dgate; data nullptr = 0
  SumRef dweight, dbias;
  int64_t n, rows, shared_rows, groups;
  // From a group's first row to the next group's: shared_rows, where there are rows.
  int64_t group_step;
  int64_t outer[kRowDims];   // extents of the digits of a row number, the fastest first
  int64_t dy_element_bytes;  // 0: a row of dy is one element
  int64_t lanes, blocks;     // of the row order; blocks is 0 without rows
  int64_t partial_stride;    // floats
  float eps, inv_n, weight_offset;
  Dtype dtype;  // T
  Dtype dx_dtype, dy_dtype, weight_dtype, dresidual_in_dtype, dresidual_dtype;
  bool every_step;  // g is rounded to T, and what statistics are computed from
  bool round_xhat;  // to T, in dweight
  bool layer;       // of kernels that serve both kinds
  bool plain;       // dy, weight and dx have x's dtype, and nothing of the above is set
  bool gated, gate_before;
  bool round_result;  // to T, what a gate after the norm multiplies
  Activation gate_act;
  Dtype gate_dtype, dgate_dtype, bias_dtype;
  BranchParams branch;
};

// Columns of dweight and dbias that are folded together.
inline constexpr int64_t kFoldColumns = 1024;

// Expects rounding to nearest and no flushing of subnormals.
using NormBackwardRange = void (*)(const NormBackwardParams& params, int64_t begin, int64_t end);

struct NormBackwardKernel {
  NormBackwardRange rows;    // dx of the rows [begin, end)
  NormBackwardRange blocks;  // dx and partial sums; unit u is block u % blocks of group u / blocks
  NormBackwardRange
      fold;  // unit u is columns from u % chunks * kFoldColumns on of group u / chunks
};

// By kind (RMS, LAYER) and Dtype of x (f32, f16, bf16).
struct NormBackwardKernels {
  NormBackwardKernel at[2][3];
};

extern const NormBackwardKernels kNormBackwardScalar;
extern const NormBackwardKernels kNormBackwardAvx2;
extern const NormBackwardKernels kNormBackwardAvx512;
extern const NormBackwardKernels kNormBackwardNeon;

}  // namespace fastnorm::cpu
