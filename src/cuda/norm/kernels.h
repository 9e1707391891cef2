// The addresses of the forward kernels, in the order of list.h's table.
#pragma once

#include <span>

#include "core/norm_key.h"
#include "cuda/norm/params.h"

namespace fastnorm::cuda {

using NormKernel = void (*)(NormCallParams);
using NormPairKernel = void (*)(NormPairParams);

// The kernels of one entry, or nullptr: see runs_pairs() and runs_heads() in norm_key.h.
struct PairKernels {
  NormPairKernel pair, heads;  // GridForm::kPair, kHeads
};

// Parts of an architecture's table that are compiled separately. The kernels of a dtype and source
// are consecutive.
inline constexpr size_t kTableParts = 6;

// Kernel `index` of the table.
template <class Kernel>
constexpr Kernel kernel_at(const std::span<const Kernel> (&parts)[kTableParts], int32_t index) {
  auto i = static_cast<size_t>(index);
  for (const std::span<const Kernel>& part : parts) {
    if (i < part.size()) return part[i];
    i -= part.size();
  }
  return {};
}

// Here an architecture's number is its capability, and that of PTX is 1. The names of kernels
// contain it.
inline constexpr int kPtxNumber = 1;

// The kernels of one part, for an architecture in this build. instances.cu defines it.
template <int kArch, Dtype kDtype, Source kSource>
std::span<const NormKernel> norm_kernels();

// The kernels for pairs, in the same order.
template <int kArch, Dtype kDtype, Source kSource>
std::span<const PairKernels> norm_pair_kernels();

// The kernels of an architecture, in the order of its table.
struct KernelParts {
  std::span<const NormKernel> kernels[kTableParts];
  std::span<const PairKernels> pair_kernels[kTableParts];
};

template <int kArch>
KernelParts kernel_parts() {
  constexpr Dtype kF32 = Dtype::kF32, kF16 = Dtype::kF16, kBF16 = Dtype::kBF16;
  constexpr Source kPlain = Source::kPlain, kAdd = Source::kAdd;
  return {{norm_kernels<kArch, kF32, kPlain>(), norm_kernels<kArch, kF32, kAdd>(),
           norm_kernels<kArch, kF16, kPlain>(), norm_kernels<kArch, kF16, kAdd>(),
           norm_kernels<kArch, kBF16, kPlain>(), norm_kernels<kArch, kBF16, kAdd>()},
          {norm_pair_kernels<kArch, kF32, kPlain>(), norm_pair_kernels<kArch, kF32, kAdd>(),
           norm_pair_kernels<kArch, kF16, kPlain>(), norm_pair_kernels<kArch, kF16, kAdd>(),
           norm_pair_kernels<kArch, kBF16, kPlain>(), norm_pair_kernels<kArch, kBF16, kAdd>()}};
}

}  // namespace fastnorm::cuda
