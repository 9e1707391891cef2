// The forward kernels of one architecture and one dtype: compiled once for each pair, with FASTNORM_ARCH (90), FASTNORM_CLUSTER_BLOCKS
// (its ArchSpec's) and FASTNORM_DTYPE (kF32, kF16, kBF16) defined.
#include <utility>

#include "cuda/norm.cuh"
#include "cuda/norm_kernels.h"
#include "cuda/norm_list.h"

namespace fastnorm::cuda {
namespace {

// Local to this object, so each has kernels of its own.
struct Arch {
  static constexpr int kCapability = FASTNORM_ARCH;
};

constexpr auto& kTable = kNormTable<FASTNORM_CLUSTER_BLOCKS>;
constexpr Dtype kDtype = Dtype::FASTNORM_DTYPE;

constexpr size_t first_of(Dtype dtype) {
  size_t i = 0;
  while (i < kTable.size() && kTable[i].key.dtype < dtype) ++i;
  return i;
}

constexpr size_t kFirst = first_of(kDtype);
constexpr size_t kCount = first_of(static_cast<Dtype>(static_cast<int>(kDtype) + 1)) - kFirst;

template <size_t kIndex>
constexpr NormKernel kernel_at() {
  constexpr NormKey key = kTable[kIndex].key;
  constexpr Tile tile = kTable[kIndex].tile;
  return &norm_kernel<Arch,
                      Slots<key.dtype, key.source, key.stat, key.affine, key.sink, key.access>,
                      RowTile<tile.threads, tile.vectors, tile.blocks>>;
}

template <size_t... kIndex>
constexpr std::array<NormKernel, kCount> make_kernels(std::index_sequence<kIndex...>) {
  return {kernel_at<kFirst + kIndex>()...};
}

constexpr std::array<NormKernel, kCount> kKernels =
    make_kernels(std::make_index_sequence<kCount>());

template <size_t kIndex>
constexpr NormPairKernel pair_kernel_at() {
  constexpr NormKey key = kTable[kIndex].key;
  constexpr Tile tile = kTable[kIndex].tile;
  if constexpr (runs_pairs(kTable[kIndex])) {
    return &norm_pair_kernel<
        Arch, Slots<key.dtype, key.source, key.stat, key.affine, key.sink, key.access>,
        RowTile<tile.threads, tile.vectors, tile.blocks>>;
  }
  return nullptr;
}

template <size_t... kIndex>
constexpr std::array<NormPairKernel, kCount> make_pair_kernels(std::index_sequence<kIndex...>) {
  return {pair_kernel_at<kFirst + kIndex>()...};
}

constexpr std::array<NormPairKernel, kCount> kPairKernels =
    make_pair_kernels(std::make_index_sequence<kCount>());

}  // namespace

template <>
std::span<const NormKernel> norm_kernels<FASTNORM_ARCH, kDtype>() {
  return kKernels;
}

template <>
std::span<const NormPairKernel> norm_pair_kernels<FASTNORM_ARCH, kDtype>() {
  return kPairKernels;
}

}  // namespace fastnorm::cuda
