// The kernels of norm_backward that an architecture has, without CUDA.
#pragma once

#include <span>

#include "cuda/arch.h"
#include "cuda/norm_backward/list.h"

namespace fastnorm::cuda {

// In the order of their addresses (kernels.h).
std::span<const NormBackwardEntry> norm_backward_table(const ArchSpec& arch);

}  // namespace fastnorm::cuda
