// The kernels of calls with stages: one function for each kind of argument,
// whose word says which.
#pragma once

#include "cuda/norm_stages/general.cuh"
#include "cuda/norm_stages/held.cuh"
#include "cuda/norm_stages/rotated.cuh"

namespace fastnorm::cuda {

// nvcc compiles this file for the host, too, which needs the kernels' names alone.
#if defined(__CUDACC__) && !defined(__CUDA_ARCH__)
inline constexpr bool kHasStagesBodies = false;
#else
inline constexpr bool kHasStagesBodies = true;
#endif

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(StagesSlots<kWord>::Tile::kBlockThreads,
                                  StagesSlots<kWord>::kVariant.per_sm)
    norm_stages_kernel(const __grid_constant__ NormStagesParams p) {
  if constexpr (kHasStagesBodies) run_general_stages<StagesSlots<kWord>>(p);
}

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(StagesSlots<kWord>::Tile::kBlockThreads,
                                  StagesSlots<kWord>::kVariant.per_sm)
    norm_stages_held_kernel(const __grid_constant__ HeldStagesParams p) {
  if constexpr (kHasStagesBodies) run_held_stages<StagesSlots<kWord>>(p);
}

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(StagesSlots<kWord>::Tile::kBlockThreads,
                                  StagesSlots<kWord>::kVariant.per_sm)
    norm_stages_rotated_kernel(const __grid_constant__ NormCallParams p) {
  if constexpr (kHasStagesBodies) run_rotated<kWord>(p);
}

}  // namespace fastnorm::cuda
