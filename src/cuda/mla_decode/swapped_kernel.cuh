// Attention of calls with few query rows, whose rows and pages have tensor-map boxes. Grid and
// pieces are those of mla_decode_kernel, with one m-tile.
#pragma once

#include "cuda/common/ptx/block.cuh"
#include "cuda/common/ptx/grid.cuh"
#include "cuda/mla_decode/kernel.cuh"
#include "cuda/mla_decode/swapped.cuh"

namespace fastnorm::cuda::mla {

__device__ __forceinline__ void init_swapped_barriers(uint32_t shared) {
  using Shared = SwappedShared;
  for (uint32_t slot = 0; slot < Shared::kSlots; ++slot) {
    ptx::mbarrier_init(shared + Shared::kFullSlots + slot * 8, 1);
    ptx::mbarrier_init(shared + Shared::kFreeSlots + slot * 8, kWarps);
  }
  ptx::mbarrier_init(shared + Shared::kFullQueries, 1);
  ptx::mbarrier_init(shared + Shared::kFreeQueries, kWarps);
  ptx::fence_mbarrier_init();
  ptx::fence_async_proxy();
}

template <Dtype kDtype>
__global__ void __launch_bounds__(kSwappedThreads, 1)
    mla_decode_swapped_kernel(const __grid_constant__ MlaDecodeMaps maps,
                              const __grid_constant__ MlaDecodeParams p) {
  if (threadIdx.x == 0) init_swapped_barriers(shared_start());
  if (threadIdx.x == kGroup) prefetch_maps(maps);
  __syncthreads();
  ptx::grid_wait();
  // Behind the wait: the kernel that merges pieces may then read the plan before its own wait.
  if (p.attention_triggers) ptx::grid_trigger();
  const Place place = find_place();
  if (place.group == 0) {
    consume_swapped<kDtype>(p, maps, place);
  } else if (ptx::elect_thread()) {
    if (place.warp == 0) {
      load_cache(p, maps, place);
    } else {
      load_queries(p, maps, place);
    }
  }
}

}  // namespace fastnorm::cuda::mla
