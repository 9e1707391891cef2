// The addresses of the norm_heads_backward kernels, in the order of an architecture's table.
#pragma once

#include <span>

#include "cuda/family.h"
#include "cuda/norm_heads_backward/params.h"

namespace fastnorm::cuda {

// The argument depends on the form: one of the three is not null.
struct NormHeadsBackwardKernel {
  void (*general)(NormHeadsBackwardParams);
  void (*held)(HeldHeadsBackwardParams);
  void (*fold)(HeadsFoldParams);

  const void* address() const {
    return general != nullptr ? reinterpret_cast<const void*>(general)
           : held != nullptr  ? reinterpret_cast<const void*>(held)
                              : reinterpret_cast<const void*>(fold);
  }
};

// Those of one dtype: neighbours in the table.
template <int kArch, Dtype kDtype>
std::span<const NormHeadsBackwardKernel> norm_heads_backward_kernels();

using NormHeadsBackwardKernels = FamilyKernels<NormHeadsBackwardKernel>;

template <int kArch>
NormHeadsBackwardKernels all_norm_heads_backward_kernels() {
  return {{norm_heads_backward_kernels<kArch, Dtype::kF32>(),
           norm_heads_backward_kernels<kArch, Dtype::kF16>(),
           norm_heads_backward_kernels<kArch, Dtype::kBF16>()}};
}

}  // namespace fastnorm::cuda
