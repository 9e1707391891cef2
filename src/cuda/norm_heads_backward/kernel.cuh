// The kernels of norm_heads_backward: one function for each kind of parameters.
#pragma once

#include "cuda/common/bodies.cuh"
#include "cuda/norm_heads_backward/fold.cuh"
#include "cuda/norm_heads_backward/general.cuh"
#include "cuda/norm_heads_backward/held.cuh"
#include "cuda/norm_heads_backward/tokens.cuh"
#include "cuda/norm_heads_backward/whole.cuh"

namespace fastnorm::cuda {

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(heads_backward_variant_of(kWord).block_threads(),
                                  heads_backward_variant_of(kWord).per_sm)
    norm_heads_backward_kernel(const __grid_constant__ NormHeadsBackwardParams p) {
  if constexpr (kHasBodies) gradient_of_heads<Element<heads_backward_variant_of(kWord).dtype>>(p);
}

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(heads_backward_variant_of(kWord).block_threads(),
                                  heads_backward_variant_of(kWord).per_sm)
    held_norm_heads_backward_kernel(const __grid_constant__ HeldHeadsBackwardParams p) {
  constexpr NormHeadsBackwardVariant kV = heads_backward_variant_of(kWord);
  if constexpr (!kHasBodies) {
  } else if constexpr (kV.is_held()) {
    gradient_of_held_heads<HeldGradientSlots<kWord>>(p);
  } else if constexpr (kV.has_tokens()) {
    values_of_held_token<HeldTokenSlots<kWord>>(p);
  } else {
    gradient_of_whole_tokens<WholeSlots<kWord>>(p);
  }
}

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(heads_backward_variant_of(kWord).block_threads(),
                                  heads_backward_variant_of(kWord).per_sm)
    fold_norm_heads_backward_kernel(const __grid_constant__ HeadsFoldParams p) {
  if constexpr (kHasBodies) fold_heads_sums<heads_backward_variant_of(kWord).block_threads()>(p);
}

}  // namespace fastnorm::cuda
