// What a kernel of norm_backward gets: one struct by value, the same for every kernel. CUDA-free.
#pragma once

#include <cstdint>

#include "core/common/dtype.h"
#include "core/norm_backward/plan.h"
#include "cuda/common/activation.h"
#include "cuda/norm/params.h"

namespace fastnorm::cuda {

// A tensor with one row, or one value, for each row of x.
struct BackwardTensor {
  char* data;         // nullptr = absent
  int64_t stride[3];  // bytes for each index of the row
  Dtype dtype;
};

// What a call with a branch adds. The dtype of x's rows is T.
struct BackwardBranch {
  BackwardTensor branch, dbranch, rstd, mean;  // mean: LAYER only
  BackwardTensor means;                        // c1 and c2 of x's rows, in the workspace
  BackwardTensor weight, bias, residual_gate;
  BackwardTensor dweight, dbias, dresidual_gate;
  const char* sum_scale;  // nullptr: 1
  float weight_offset, alpha;
  StageFunction act;  // of residual_gate
};

struct NormBackwardParams {
  uint32_t bits;           // NormBackwardBits
  uint32_t rows;           // of x: shared_rows * groups
  uint32_t shared_rows;    // M: rows that share a row of the weight
  uint32_t groups;         // rows of the weight
  uint32_t lanes, blocks;  // the row order of dweight: Q and nb
  uint32_t step;           // lanes * blocks: from a row of a lane to its next
  uint32_t split_bits;     // 1 << split_bits thread blocks share a block's lanes
  uint32_t fold_blocks;    // blocks, up to a power of two
  int32_t vectors;         // 16-byte vectors of x's dtype in a row, the last may be short
  int64_t n;
  float inv_n, weight_offset;
  Dtype dtype;        // what is rounded to between steps: that of the forward's x and of dx
  Divisor outer[2];   // extents of the first and second index, where there are more than one
  bool dy_is_scalar;  // a row of dy is one element, read for every column

  BackwardTensor x, dy, rstd, mean;
  BackwardTensor dresidual_in, dx, dresidual;
  BackwardTensor weight, dweight, dbias;

  // The blocks' sums, as sums_of() lists them: [group][block][split][partial_stride].
  float* partial[kBackwardSums];
  int64_t partial_stride;  // floats

  // What gated forms read and write. bias is the forward's.
  BackwardTensor gate, bias, dgate;
  StageFunction gate_act;

  BackwardBranch branch;

  NormParams forward;  // for statistics that are recomputed
};

}  // namespace fastnorm::cuda
