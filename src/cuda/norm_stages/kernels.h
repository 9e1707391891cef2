// The kernels of calls with stages by address, in the order of an architecture's table. CUDA-free.
#pragma once

#include <span>

#include "cuda/family.h"
#include "cuda/norm_stages/params.h"

namespace fastnorm::cuda {

// The argument depends on the form: two of the three are null.
struct NormStagesKernel {
  void (*general)(NormStagesParams);
  void (*held)(HeldStagesParams);
  void (*rotated)(NormCallParams);

  const void* address() const {
    return general != nullptr ? reinterpret_cast<const void*>(general)
           : held != nullptr  ? reinterpret_cast<const void*>(held)
                              : reinterpret_cast<const void*>(rotated);
  }
};

// Those of one dtype: neighbours in the table.
template <int kArch, Dtype kDtype>
std::span<const NormStagesKernel> norm_stages_kernels();

using NormStagesKernels = FamilyKernels<NormStagesKernel>;

template <int kArch>
NormStagesKernels all_norm_stages_kernels() {
  return {{norm_stages_kernels<kArch, Dtype::kF32>(), norm_stages_kernels<kArch, Dtype::kF16>(),
           norm_stages_kernels<kArch, Dtype::kBF16>()}};
}

}  // namespace fastnorm::cuda
