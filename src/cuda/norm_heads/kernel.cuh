// The kernels of norm_heads: one function for each kind of argument, whose word says which.
#pragma once

#include "cuda/norm_heads/general.cuh"
#include "cuda/norm_heads/held.cuh"
#include "cuda/norm_heads/latent.cuh"
#include "cuda/norm_heads/tokens.cuh"

namespace fastnorm::cuda {

// nvcc compiles this file for the host, too, which needs the kernels' names alone.
#if defined(__CUDACC__) && !defined(__CUDA_ARCH__)
inline constexpr bool kHasHeadsBodies = false;
#else
inline constexpr bool kHasHeadsBodies = true;
#endif

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(heads_variant_of(kWord).block_threads(),
                                  heads_variant_of(kWord).per_sm)
    norm_heads_kernel(const __grid_constant__ NormHeadsParams p) {
  if constexpr (kHasHeadsBodies) run_general_heads<heads_variant_of(kWord).dtype>(p);
}

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(heads_variant_of(kWord).block_threads(),
                                  heads_variant_of(kWord).per_sm)
    held_heads_kernel(const __grid_constant__ HeldHeadsParams p) {
  if constexpr (!kHasHeadsBodies) {
    return;
  } else if constexpr (heads_variant_of(kWord).has_tokens()) {
    run_held_tokens<TokenSlots<kWord>>(p);
  } else if constexpr (heads_variant_of(kWord).has_latents()) {
    run_latents<LatentSlots<kWord>, ShortSlots<kWord>>(p);
  } else {
    run_held_heads<HeldSlots<kWord>>(p);
  }
}

}  // namespace fastnorm::cuda
