// The kernels of calls with stages of one architecture and dtype: compiled once for each, with
// FASTNORM_ARCH (90), FASTNORM_SPEC (kSm90, of arch.h) and FASTNORM_DTYPE (kF32, kF16, kBF16)
// defined.
#include "cuda/arch.h"
#include "cuda/norm_stages/kernel.cuh"
#include "cuda/norm_stages/kernels.h"
#include "cuda/norm_stages/list.h"

namespace fastnorm::cuda {
namespace {

constexpr bool kHeld = FASTNORM_SPEC.holds_rows;
constexpr Dtype kDtype = Dtype::FASTNORM_DTYPE;

struct Maker {
  template <uint32_t kWord>
  static constexpr NormStagesKernel of() {
    constexpr StagesVariant kVariant = stages_variant_of(kWord);
    if constexpr (kVariant.is_rotated()) {
      return {nullptr, nullptr, &norm_stages_rotated_kernel<FASTNORM_ARCH, kWord>};
    } else if constexpr (kVariant.is_held()) {
      return {nullptr, &norm_stages_held_kernel<FASTNORM_ARCH, kWord>, nullptr};
    } else {
      return {&norm_stages_kernel<FASTNORM_ARCH, kWord>, nullptr, nullptr};
    }
  }
};

constexpr auto kKernels = make_kernels<StagesFamily, Maker, kHeld, kDtype>();

}  // namespace

template <>
std::span<const NormStagesKernel> norm_stages_kernels<FASTNORM_ARCH, kDtype>() {
  return kKernels;
}

}  // namespace fastnorm::cuda
