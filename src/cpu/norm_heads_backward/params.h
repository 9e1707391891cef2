// The parameters of a CPU kernel of norm_heads_backward. Plain data: units of any instruction set
// may include it.
#pragma once

#include <cstdint>

#include "cpu/norm_backward/params.h"
#include "cpu/norm_heads/params.h"

namespace fastnorm::cpu {

// Values of a token that its heads share, in the workspace.
struct TokenValues {
  float mean, rstd, c1, c2;
};

struct NormHeadsBackwardParams : PartRope {
  NormBackwardParams rows;  // of d columns, numbered as norm_backward's
  RopeParams tables;
  int64_t heads;
  int64_t token_step[kRowDims], head_step[kRowDims];  // by the digits of a row's number
  // How much greater a row's number is where its token or its head is one more; 0 where there is
  // one alone.
  int64_t token_rows, head_rows;
  float inv_all;       // 1 / (heads * d)
  TokenValues* token;  // [tokens]; nullptr = every row has its own
  bool normalise;
};

// Requires rounding to nearest, and subnormals kept.
using NormHeadsBackwardRange = void (*)(const NormHeadsBackwardParams& params, int64_t begin,
                                        int64_t end);

struct NormHeadsBackwardKernel {
  NormHeadsBackwardRange tokens;  // their values
  NormHeadsBackwardRange rows;    // as NormBackwardKernel's
  NormHeadsBackwardRange blocks;
};

// By kind (RMS, LAYER) and T (f32, f16, bf16).
struct NormHeadsBackwardKernels {
  NormHeadsBackwardKernel at[2][3];
};

extern const NormHeadsBackwardKernels kNormHeadsBackwardScalar;
extern const NormHeadsBackwardKernels kNormHeadsBackwardAvx2;
extern const NormHeadsBackwardKernels kNormHeadsBackwardAvx512;
extern const NormHeadsBackwardKernels kNormHeadsBackwardNeon;

}  // namespace fastnorm::cpu
