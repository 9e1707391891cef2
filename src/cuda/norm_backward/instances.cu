// The kernels of norm_backward: see cuda/instances.cuh.
#include "cuda/norm_backward/kernel.cuh"
#include "cuda/norm_backward/list.h"

#define FASTNORM_FAMILY NormBackwardFamily

namespace fastnorm::cuda {
namespace {

template <uint64_t kWord>
constexpr auto kernel_of() {
  return &norm_backward_kernel<FASTNORM_ARCH, kWord>;
}

}  // namespace
}  // namespace fastnorm::cuda

#include "cuda/instances.cuh"
