// The kernels of calls with stages: one function for each kind of argument,
// whose word says which.
#pragma once

#include "cuda/common/bodies.cuh"
#include "cuda/norm_stages/general.cuh"
#include "cuda/norm_stages/held.cuh"
#include "cuda/norm_stages/rotated.cuh"

namespace fastnorm::cuda {

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(StagesSlots<kWord>::Tile::kBlockThreads,
                                  StagesSlots<kWord>::kVariant.per_sm)
    norm_stages_kernel(const __grid_constant__ NormStagesParams p) {
  if constexpr (kHasBodies) run_general_stages<StagesSlots<kWord>>(p);
}

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(StagesSlots<kWord>::Tile::kBlockThreads,
                                  StagesSlots<kWord>::kVariant.per_sm)
    norm_stages_held_kernel(const __grid_constant__ HeldStagesParams p) {
  if constexpr (kHasBodies) run_held_stages<StagesSlots<kWord>>(p);
}

template <int kArch, uint32_t kWord>
__global__ void __launch_bounds__(StagesSlots<kWord>::Tile::kBlockThreads,
                                  StagesSlots<kWord>::kVariant.per_sm)
    norm_stages_rotated_kernel(const __grid_constant__ NormCallParams p) {
  if constexpr (kHasBodies) run_rotated<kWord>(p);
}

}  // namespace fastnorm::cuda
