// The kernels of norm_heads of one architecture and dtype: compiled once for each, with
// FASTNORM_ARCH (90), FASTNORM_SPEC (kSm90, of arch.h) and FASTNORM_DTYPE (kF32, kF16, kBF16)
// defined.
#include "cuda/arch.h"
#include "cuda/norm_heads/kernel.cuh"
#include "cuda/norm_heads/kernels.h"
#include "cuda/norm_heads/list.h"

namespace fastnorm::cuda {
namespace {

constexpr bool kHeld = FASTNORM_SPEC.holds_rows;
constexpr Dtype kDtype = Dtype::FASTNORM_DTYPE;

struct Maker {
  template <uint32_t kWord>
  static constexpr NormHeadsKernel of() {
    if constexpr (heads_variant_of(kWord).is_held()) {
      return {nullptr, &held_heads_kernel<FASTNORM_ARCH, kWord>};
    } else {
      return {&norm_heads_kernel<FASTNORM_ARCH, kWord>, nullptr};
    }
  }
};

constexpr auto kKernels = make_kernels<HeadsFamily, Maker, kHeld, kDtype>();

}  // namespace

template <>
std::span<const NormHeadsKernel> norm_heads_kernels<FASTNORM_ARCH, kDtype>() {
  return kKernels;
}

}  // namespace fastnorm::cuda
