// The addresses of the forward kernels, in the order of norm_list.h's table.
#pragma once

#include <span>

#include "core/dtype.h"
#include "cuda/norm_params.h"

namespace fastnorm::cuda {

using NormKernel = void (*)(NormParams);

// The kernels of one dtype, for an architecture that this build has: defined by norm_arch.cu.
template <int kArch, Dtype kDtype>
std::span<const NormKernel> norm_kernels();

}  // namespace fastnorm::cuda
