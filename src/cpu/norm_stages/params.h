// What a kernel for calls with stages gets. No inline functions: see norm/params.h.
#pragma once

#include "core/norm/stages.h"
#include "cpu/norm/params.h"

namespace fastnorm::cpu {

enum class Activation : uint8_t { kIdentity, kSilu, kSigmoid, kTanh };

// A factor or a summand of rows, and a row that is added to it.
struct ModulatorParams {
  RowRef rows;
  const char* table;
  int64_t index_stride;  // bytes between the rows that an index takes
  OperandType type, table_type;
  bool single;  // one element for all columns
};

struct StagesParams {
  NormParams norm;      // n, inv_n: of a group
  int64_t row_columns;  // of all groups
  RowRef gate;          // [rows, row_columns]
  RowRef mean_in, rstd_in, sumsq;
  int64_t weight_step, bias_step;  // bytes from a group's columns to the next's; 0 = shared
  OperandType gate_type;
  Activation gate_act, activation;
  bool gate_before, gate_from_rounded;
  NormParams branch;  // of all columns; what of it a row's statistics and columns need
  RowRef branch_rstd;
  const char* sum_scale;  // f32; nullptr = 1
  float alpha;
  bool has_branch, branch_rounded;
  bool scaled;          // by alpha
  bool sum_every_step;  // rounded
  ModulatorParams residual_gate, modulation_scale, modulation_shift;
  RowRef modulation_index;  // i32 or i64
  Activation residual_gate_act;
  bool wide_index, plain_scale, modulation_every_step;
};

// The rows [begin, end).
using StagesKernel = void (*)(const StagesParams& params, int64_t begin, int64_t end);

// In the order of kStagesTable.
struct StagesKernels {
  StagesKernel at[kStagesKernels];
};

extern const StagesKernels kNormStagesScalar;
extern const StagesKernels kNormStagesAvx2;
extern const StagesKernels kNormStagesAvx512;
extern const StagesKernels kNormStagesNeon;

}  // namespace fastnorm::cpu
