// What kernels of calls with stages get: one struct by value. CUDA-free.
#pragma once

#include <cstdint>

#include "core/norm/stages.h"
#include "cuda/common/activation.h"
#include "cuda/norm/params.h"

namespace fastnorm::cuda {

// What a call asks for, as bits of one word.
enum StagesBits : uint32_t {
  kStagesLayer = 1 << 0,
  kStagesGate = 1 << 1,         // there is one, ..
  kStagesGateBefore = 1 << 2,   // .. before the statistics, else after the weight
  kStagesGateRounded = 1 << 3,  // what a gate after the norm multiplies is rounded to T
  kStagesBranch = 1 << 4,
  kStagesBranchLayer = 1 << 5,
  kStagesBranchRounded = 1 << 6,
  kStagesResidual = 1 << 7,
  kStagesScaled = 1 << 8,         // by alpha
  kStagesSumEveryStep = 1 << 9,   // of the sum is rounded to T
  kStagesWeightShared = 1 << 10,  // by the groups
  kStagesBiasShared = 1 << 11,
  kStagesStoresRows = 1 << 12,  // more leaves than statistics
  kStagesCodes = 1 << 13,       // `quantized` or amax is wanted
  // All inputs but statistics and modulators have x's dtype. Their groups are aligned: addresses,
  // strides and lengths are multiples of 16 bytes.
  kStagesWide = 1 << 14,
  // The held forms:
  kStagesRoundNormalized = 1 << 15,        // before the weight
  kStagesBranchRoundNormalized = 1 << 16,  // before the branch's weight
  kStagesRoundSum = 1 << 17,               // to T before the statistics
  // Modulators: there is one, ..
  kStagesFactor = 1 << 18,  // residual_gate
  kStagesScale = 1 << 19,
  kStagesShift = 1 << 20,
  // .. and it has one element for all columns.
  kStagesSingleFactor = 1 << 21,
  kStagesSingleScale = 1 << 22,
  kStagesSingleShift = 1 << 23,
  kStagesPlainScale = 1 << 24,       // the factor is the scale, not 1 + it
  kStagesModulateInSteps = 1 << 25,  // each step of the modulation is rounded to T
  kStagesWideIndex = 1 << 26,        // of i64, else i32
  kStagesMixed = 1 << 27,            // the held form: one of them is f32 or has a table
  kStagesAlone = 1 << 28,            // the held form: RMS of x itself, no sum leaves
};

// A tensor with a row, or values, for each row of x.
struct StageTensor {
  RowRef row;
  RowStrides upper;
};

// A factor or a summand of rows.
struct StageModulator {
  StageTensor rows;
  int64_t index_stride;  // bytes between the rows that an index selects
  int64_t last_row;      // the greatest index
  const char* table;     // a row that is added; nullptr = absent
  OperandType type, table_type;
};

struct StageModulators {
  StageModulator factor, scale, shift;
  StageTensor index;  // [rows] of i32 or i64; without data: there is none
  StageFunction factor_act;
};

struct NormStagesParams {
  NormCallParams norm;    // inv_n: of a group
  NormCallParams branch;  // weight, bias and what rounds; inv_n: of the row
  uint32_t bits;          // StagesBits
  OperandType gate_type;
  StageFunction gate_act, activation;
  uint32_t columns;  // of a row
  uint32_t group;    // columns of a group
  uint32_t groups;   // of a row
  Divisor by_group;  // of no use with groups of one column
  float alpha;
  const float* sum_scale;               // nullptr = 1
  StageTensor gate;                     // [rows, columns]
  StageTensor mean_in, rstd_in, sumsq;  // [rows, groups], LAYER's sumsq: [rows, groups, 2]
  StageTensor branch_rstd;              // [rows]
  StageModulators modulators;
};
static_assert(sizeof(NormStagesParams) <= 4096);

// What held forms get. A group of a row is a row here; they are numbered along the groups first.
struct HeldStagesParams {
  NormParams norm;  // rows: as above; vectors, inv_n: of a group; the rest is the call's
  uint32_t bits;    // StagesBits
  StageFunction gate_act;
  uint32_t groups;       // of the call's rows
  Divisor by_groups;     // of no use with one group
  uint32_t weight_step;  // bytes from a group's weight to the next one's; 0 = shared
  StageTensor gate;
  // The branch.
  const char* branch_weight;  // nullptr = absent
  float branch_eps, branch_weight_offset;
  float alpha;
  const float* sum_scale;  // nullptr = 1
  StageTensor branch_rstd;
  StageModulators modulators;  // of T or f32, [rows, columns] each, without act
};

}  // namespace fastnorm::cuda
