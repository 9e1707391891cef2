// The forward kernels of one architecture, dtype and source. The build compiles this file once for
// each, with FASTNORM_ARCH (90), FASTNORM_SPEC (kSm90, of arch.h), FASTNORM_DTYPE (kF32, kF16,
// kBF16) and FASTNORM_SOURCE (kPlain, kAdd).
#include "cuda/arch.h"
#include "cuda/kernels.h"
#include "cuda/norm/kernel.cuh"
#include "cuda/norm/list.h"

namespace fastnorm::cuda {
namespace {

constexpr int kPart = NormFamily::part_of(Dtype::FASTNORM_DTYPE, Source::FASTNORM_SOURCE);
// By value: no object needs it at run time.
constexpr auto kPartWords = make_words<NormFamily, FASTNORM_SPEC.column, kPart>();
constexpr size_t kCount = kPartWords.size();

// Tests may compile a sample: the first kernel of each key, and every so many after it. The others
// are nullptr then.
#ifdef FASTNORM_SAMPLE
constexpr bool compiles(size_t index) {
  return (index + FASTNORM_SAMPLE_FROM) % FASTNORM_SAMPLE == 0 || index == 0 ||
         key_of_packed(kPartWords[index].word.order) !=
             key_of_packed(kPartWords[index - 1].word.order);
}
#else
constexpr bool compiles(size_t) { return true; }
#endif

// The kernel of a variant for a form of grids, or nullptr: see runs_pairs() and runs_heads().
template <size_t kIndex, GridForm kForm>
constexpr auto make_kernel() {
  constexpr VariantWords words = kPartWords[kIndex].word;
  constexpr NormKey key = key_of_packed(words.order);
  constexpr Tile tile = tile_of_packed(words.order);
  if constexpr (kForm == GridForm::kRows) {
    void (*kernel)(NormCallParams) = nullptr;
    if constexpr (compiles(kIndex))
      kernel = &norm_kernel<FASTNORM_ARCH, words.order, words.policies>;
    return kernel;
  } else {
    constexpr bool kRuns = kForm == GridForm::kPair ? runs_pairs(key, tile) : runs_heads(key, tile);
    void (*kernel)(NormPairParams) = nullptr;
    if constexpr (kRuns && compiles(kIndex))
      kernel = &norm_pair_kernel<FASTNORM_ARCH, words.order, words.policies, kForm>;
    return kernel;
  }
}

struct Maker {
  template <size_t kNumber>
  static constexpr auto kernel() {
    return make_kernel<kNumber / kNormForms, static_cast<GridForm>(kNumber % kNormForms)>();
  }
};

}  // namespace

template <>
std::span<const void* const> part_kernels<NormFamily, FASTNORM_ARCH, kPart>() {
  return addresses_of<NormFamily, FASTNORM_ARCH, kPart, Maker, kCount * kNormForms>();
}

}  // namespace fastnorm::cuda
