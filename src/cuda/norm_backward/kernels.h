// The kernels of norm_backward by address, in the order of an architecture's table. CUDA-free.
#pragma once

#include <span>

#include "core/norm_backward_plan.h"
#include "cuda/family.h"
#include "cuda/norm_backward/params.h"

namespace fastnorm::cuda {

using NormBackwardKernel = void (*)(NormBackwardParams);

// Those of one dtype: neighbours in the table.
template <int kArch, Dtype kDtype>
std::span<const NormBackwardKernel> norm_backward_kernels();

using NormBackwardKernels = FamilyKernels<NormBackwardKernel>;

template <int kArch>
NormBackwardKernels all_norm_backward_kernels() {
  return {{norm_backward_kernels<kArch, Dtype::kF32>(), norm_backward_kernels<kArch, Dtype::kF16>(),
           norm_backward_kernels<kArch, Dtype::kBF16>()}};
}

}  // namespace fastnorm::cuda
