// Which function of a gate, or of a result, a kernel computes. CUDA-free.
#pragma once

#include <cstdint>

#include "fastnorm/norm.h"

namespace fastnorm::cuda {

enum class StageFunction : uint32_t { kIdentity, kSilu, kSigmoid, kTanh };

constexpr StageFunction function_of(fastnorm_activation activation) {
  return activation == FASTNORM_ACTIVATION_SILU      ? StageFunction::kSilu
         : activation == FASTNORM_ACTIVATION_SIGMOID ? StageFunction::kSigmoid
         : activation == FASTNORM_ACTIVATION_TANH    ? StageFunction::kTanh
                                                     : StageFunction::kIdentity;
}

}  // namespace fastnorm::cuda
