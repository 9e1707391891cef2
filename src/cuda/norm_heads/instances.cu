// The kernels of norm_heads: see cuda/instances.cuh.
#include "cuda/norm_heads/kernel.cuh"
#include "cuda/norm_heads/list.h"

#define FASTNORM_FAMILY NormHeadsFamily

namespace fastnorm::cuda {
namespace {

template <uint32_t kWord>
constexpr auto kernel_of() {
  if constexpr (heads_variant_of(kWord).is_indexer()) {
    return &indexer_heads_kernel<FASTNORM_ARCH, kWord>;
  } else if constexpr (heads_variant_of(kWord).is_held()) {
    return &held_heads_kernel<FASTNORM_ARCH, kWord>;
  } else {
    return &norm_heads_kernel<FASTNORM_ARCH, kWord>;
  }
}

}  // namespace
}  // namespace fastnorm::cuda

#include "cuda/instances.cuh"
