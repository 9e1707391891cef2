// Attention over rows of FP8 caches and over rows that indices select. Grid and pieces are those of
// mla_decode_kernel; a thread block has the same shared memory, and registers as each of its
// warpgroups needs them.
#pragma once

#include "cuda/common/ptx/block.cuh"
#include "cuda/common/ptx/grid.cuh"
#include "cuda/mla_decode/gather.cuh"
#include "cuda/mla_decode/gather_consumer.cuh"
#include "cuda/mla_decode/kernel.cuh"

namespace fastnorm::cuda::mla {

__device__ __forceinline__ void init_gather_barriers(const MlaDecodeParams& p, uint32_t shared) {
  ptx::mbarrier_init(shared + kFullQ, p.q_access == RowAccess::kRows ? kQueryWarps : 1);
  for (uint32_t half = 0; half < 4; ++half) {
    ptx::mbarrier_init(shared + kFull + half * 8, kGatherWarps);
    ptx::mbarrier_init(shared + kFree + half * 8, kWarps);
  }
  ptx::mbarrier_init(shared + kFreeQ, kWarps);
  ptx::fence_mbarrier_init();
  ptx::fence_async_proxy();
}

template <Dtype kDtype, MlaCacheFormat kFormat>
__global__ void __launch_bounds__(kGatherThreads, 1)
    mla_decode_gather_kernel(const __grid_constant__ MlaDecodeMaps maps,
                             const __grid_constant__ MlaDecodeParams p) {
  if (threadIdx.x == 0) init_gather_barriers(p, shared_start());
  if (threadIdx.x == kConsumers) {
    for (const CUtensorMap* map : {&maps.q_nope, &maps.q_pe, &maps.o}) ptx::tma_prefetch_map(map);
  }
  __syncthreads();
  ptx::grid_wait();
  // Behind the wait: the kernel that merges pieces may then read the plan before its own wait.
  if (p.attention_triggers) ptx::grid_trigger();
  const int group = __shfl_sync(~0u, threadIdx.x / kGroup, 0);
  if (group >= 2) {
    ptx::lower_registers<80>();
    gather<kDtype, kFormat>(p, maps, find_place());
  } else if (group == 0) {
    ptx::raise_registers<192>();
    consume_gathered<kDtype, kFormat, 0>(p, maps, find_place());
  } else {
    ptx::raise_registers<160>();
    consume_gathered<kDtype, kFormat, 1>(p, maps, find_place());
  }
}

}  // namespace fastnorm::cuda::mla
