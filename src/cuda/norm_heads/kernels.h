// The kernels of norm_heads by address, in the order of an architecture's table. CUDA-free.
#pragma once

#include <span>

#include "cuda/family.h"
#include "cuda/norm_heads/params.h"

namespace fastnorm::cuda {

// The argument depends on the form: one of the two is null.
struct NormHeadsKernel {
  void (*general)(NormHeadsParams);
  void (*held)(HeldHeadsParams);

  const void* address() const {
    return general != nullptr ? reinterpret_cast<const void*>(general)
                              : reinterpret_cast<const void*>(held);
  }
};

// Those of one dtype: neighbours in the table.
template <int kArch, Dtype kDtype>
std::span<const NormHeadsKernel> norm_heads_kernels();

using NormHeadsKernels = FamilyKernels<NormHeadsKernel>;

template <int kArch>
NormHeadsKernels all_norm_heads_kernels() {
  return {{norm_heads_kernels<kArch, Dtype::kF32>(), norm_heads_kernels<kArch, Dtype::kF16>(),
           norm_heads_kernels<kArch, Dtype::kBF16>()}};
}

}  // namespace fastnorm::cuda
