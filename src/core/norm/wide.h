// Calls whose x has more leading dimensions than a description. They are folded to as few as the
// strides of all tensors allow.
#pragma once

#include <cstdint>

#include "core/common/check.h"
#include "core/norm/desc.h"
#include "fastnorm/norm.h"

namespace fastnorm {

// Equivalent arguments with at most kMaxOuter leading dimensions, and the memory of those that
// changed.
struct FoldedArgs {
  static constexpr int kTensors = 22;  // those with leading dimensions

  fastnorm_norm_args args;
  fastnorm_quant quant;  // of args, where it has one
  fastnorm_tensor tensor[kTensors];
  int64_t shape[kTensors][kMaxOuter + 2];  // two for groups and their pairs
  int64_t strides[kTensors][kMaxOuter + 2];
};

// Checks what folding loses (ranks, shapes, places and strides), then folds. check_norm() checks
// the rest of folded->args. A tensor whose dtype or scheme check_norm() will refuse stays as it is.
// `quant` is that of args in our size, or nullptr. FASTNORM_ERROR_UNSUPPORTED if more than
// kMaxOuter dimensions remain.
fastnorm_status fold_args(const fastnorm_norm_args& args, const fastnorm_quant* quant,
                          CheckedDevice device, FoldedArgs* folded, Error& error);

}  // namespace fastnorm
