// The kernels of norm_backward of one architecture and dtype. The build compiles this file once for
// each, with FASTNORM_ARCH (90), FASTNORM_SPEC (kSm90, of arch.h) and FASTNORM_DTYPE (kF32, kF16,
// kBF16).
#include "cuda/arch.h"
#include "cuda/norm_backward/kernel.cuh"
#include "cuda/norm_backward/kernels.h"
#include "cuda/norm_backward/list.h"

namespace fastnorm::cuda {
namespace {

constexpr bool kHeld = FASTNORM_SPEC.holds_rows;
constexpr Dtype kDtype = Dtype::FASTNORM_DTYPE;

struct Maker {
  template <uint64_t kWord>
  static constexpr NormBackwardKernel of() {
    return &norm_backward_kernel<FASTNORM_ARCH, kWord>;
  }
};

constexpr auto kKernels = make_kernels<BackwardFamily, Maker, kHeld, kDtype>();

}  // namespace

template <>
std::span<const NormBackwardKernel> norm_backward_kernels<FASTNORM_ARCH, kDtype>() {
  return kKernels;
}

}  // namespace fastnorm::cuda
