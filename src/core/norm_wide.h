// Calls whose x has more leading dimensions than a description: folded to as few as the strides of all tensors allow.
#pragma once

#include <cstdint>

#include "core/check.h"
#include "core/norm_desc.h"
#include "fastnorm/norm.h"

namespace fastnorm {

// Arguments that mean the same with at most kMaxOuter leading dimensions, and the memory of those that changed.
struct FoldedArgs {
  static constexpr int kTensors = 10;  // that have leading dimensions

  fastnorm_norm_args args;
  fastnorm_tensor tensor[kTensors];
  int64_t shape[kTensors][kMaxOuter + 1];
  int64_t strides[kTensors][kMaxOuter + 1];
};

// Checks what is lost by folding (ranks, shapes, places and strides) and folds; check_norm() checks the rest of folded->args. Tensors
// whose dtype or scheme check_norm() will refuse stay as they are. FASTNORM_ERROR_UNSUPPORTED if more than kMaxOuter dimensions are left.
fastnorm_status fold_args(const fastnorm_norm_args& args, CheckedDevice device, FoldedArgs* folded,
                          Error& error);

}  // namespace fastnorm
