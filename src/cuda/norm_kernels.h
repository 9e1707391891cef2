// The addresses of the forward kernels, in the order of norm_list.h's table.
#pragma once

#include <span>

#include "core/norm_key.h"
#include "cuda/norm_params.h"

namespace fastnorm::cuda {

using NormKernel = void (*)(NormParams);
using NormPairKernel = void (*)(NormPairParams);

// True if there is a kernel of this entry for two calls in one grid: query and key heads of a fused QKV buffer, rows of a warp or less.
constexpr bool runs_pairs(const NormEntry& entry) {
  return entry.key.source == Source::kPlain && entry.key.sink == Sink::kStore &&
         entry.key.access == Access::kVector && entry.tile.threads <= 32;
}

// Kernel `index` of a table whose dtypes follow each other.
template <class Kernel, size_t kParts>
constexpr Kernel kernel_at(const std::span<const Kernel> (&parts)[kParts], int32_t index) {
  auto i = static_cast<size_t>(index);
  for (const std::span<const Kernel>& part : parts) {
    if (i < part.size()) return part[i];
    i -= part.size();
  }
  return nullptr;
}

// The kernels of one dtype, for an architecture that this build has: defined by norm_arch.cu.
template <int kArch, Dtype kDtype>
std::span<const NormKernel> norm_kernels();

// In the same order, nullptr where there is none: see runs_pairs().
template <int kArch, Dtype kDtype>
std::span<const NormPairKernel> norm_pair_kernels();

}  // namespace fastnorm::cuda
