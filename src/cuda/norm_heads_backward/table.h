// The kernels of norm_heads_backward of an architecture. CUDA-free.
#pragma once

#include "cuda/arch.h"
#include "cuda/norm_heads_backward/list.h"

namespace fastnorm::cuda {

// Sorted by `order`.
std::span<const NormHeadsBackwardEntry> norm_heads_backward_table(const ArchSpec& arch);

}  // namespace fastnorm::cuda
