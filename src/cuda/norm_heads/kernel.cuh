// The kernels of norm_heads: one function for each kind of argument, whose word says which.
#pragma once

#include "cuda/common/bodies.cuh"
#include "cuda/norm_heads/general.cuh"
#include "cuda/norm_heads/held.cuh"
#include "cuda/norm_heads/indexer_lean.cuh"
#include "cuda/norm_heads/latent.cuh"
#include "cuda/norm_heads/tokens.cuh"

namespace fastnorm::cuda {

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(heads_variant_of(kWord).block_threads(),
                                  heads_variant_of(kWord).per_sm)
    norm_heads_kernel(const __grid_constant__ NormHeadsParams p) {
  if constexpr (kHasBodies) run_general_heads<heads_variant_of(kWord).dtype>(p);
}

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(heads_variant_of(kWord).block_threads(),
                                  heads_variant_of(kWord).per_sm)
    held_heads_kernel(const __grid_constant__ HeldHeadsParams p) {
  if constexpr (!kHasBodies) {
    return;
  } else if constexpr (heads_variant_of(kWord).has_tokens()) {
    run_held_tokens<TokenSlots<kWord>>(p);
  } else if constexpr (heads_variant_of(kWord).has_latents()) {
    run_latents<LongLatentSlots<kWord>, LatentSlots<kWord>, ShortSlots<kWord>>(p);
  } else {
    run_held_heads<HeldSlots<kWord>>(p);
  }
}

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(heads_variant_of(kWord).block_threads(),
                                  heads_variant_of(kWord).per_sm)
    indexer_heads_kernel(const __grid_constant__ IndexerParams p) {
  if constexpr (!kHasBodies) {
    return;
  } else if constexpr (heads_variant_of(kWord).is_lean_indexer()) {
    run_lean_indexer<IndexerSlots<kWord>>(p);
  } else {
    run_indexer<IndexerSlots<kWord>>(p);
  }
}

}  // namespace fastnorm::cuda
