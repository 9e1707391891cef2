// The kernels of norm_heads that an architecture has, without CUDA.
#pragma once

#include <span>

#include "cuda/arch.h"
#include "cuda/norm_heads/list.h"

namespace fastnorm::cuda {

// In the order of their addresses (kernels.h).
std::span<const NormHeadsEntry> norm_heads_table(const ArchSpec& arch);

}  // namespace fastnorm::cuda
