// The forward kernels of one architecture, dtype and source. The build compiles this file once for
// each, with FASTNORM_ARCH (90), FASTNORM_SPEC (kSm90, of arch.h), FASTNORM_DTYPE (kF32, kF16,
// kBF16) and FASTNORM_SOURCE (kPlain, kAdd). For all kernels of a dtype at once the compiler would
// need 11 GB.
#include <utility>

#include "cuda/arch.h"
#include "cuda/norm/kernel.cuh"
#include "cuda/norm/kernels.h"
#include "cuda/norm/list.h"

namespace fastnorm::cuda {
namespace {

constexpr Dtype kDtype = Dtype::FASTNORM_DTYPE;
constexpr Source kSource = Source::FASTNORM_SOURCE;
// By value: no object needs it at run time.
constexpr auto kPart = make_variants<list_arch(FASTNORM_SPEC), kDtype, kSource>();
constexpr size_t kCount = kPart.size();

// Tests may compile a sample: the first kernel of each key, and every so many after it. The others
// are nullptr then.
#ifdef FASTNORM_SAMPLE
constexpr bool compiles(size_t index) {
  return (index + FASTNORM_SAMPLE_FROM) % FASTNORM_SAMPLE == 0 || index == 0 ||
         key_of_packed(kPart[index].order) != key_of_packed(kPart[index - 1].order);
}
#else
constexpr bool compiles(size_t) { return true; }
#endif

template <size_t kIndex>
constexpr NormKernel kernel_at() {
  constexpr VariantWords words = kPart[kIndex];
  if constexpr (compiles(kIndex)) return &norm_kernel<FASTNORM_ARCH, words.order, words.policies>;
  return nullptr;
}

template <size_t... kIndex>
constexpr std::array<NormKernel, kCount> make_kernels(std::index_sequence<kIndex...>) {
  return {kernel_at<kIndex>()...};
}

constexpr std::array<NormKernel, kCount> kKernels =
    make_kernels(std::make_index_sequence<kCount>());

template <size_t kIndex>
constexpr PairKernels pair_kernels_at() {
  constexpr VariantWords words = kPart[kIndex];
  constexpr NormKey key = key_of_packed(words.order);
  constexpr Tile tile = tile_of_packed(words.order);
  PairKernels kernels = {};
  if constexpr (runs_pairs(key, tile) && compiles(kIndex))
    kernels.pair = &norm_pair_kernel<FASTNORM_ARCH, words.order, words.policies, GridForm::kPair>;
  if constexpr (runs_heads(key, tile) && compiles(kIndex))
    kernels.heads = &norm_pair_kernel<FASTNORM_ARCH, words.order, words.policies, GridForm::kHeads>;
  return kernels;
}

template <size_t... kIndex>
constexpr std::array<PairKernels, kCount> make_pair_kernels(std::index_sequence<kIndex...>) {
  return {pair_kernels_at<kIndex>()...};
}

constexpr std::array<PairKernels, kCount> kPairKernels =
    make_pair_kernels(std::make_index_sequence<kCount>());

}  // namespace

template <>
std::span<const NormKernel> norm_kernels<FASTNORM_ARCH, kDtype, kSource>() {
  return kKernels;
}

template <>
std::span<const PairKernels> norm_pair_kernels<FASTNORM_ARCH, kDtype, kSource>() {
  return kPairKernels;
}

}  // namespace fastnorm::cuda
