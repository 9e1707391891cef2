// Attention of an MLA decode call: a thread block computes one m-tile of 64 query rows for the
// pieces of its part. Grid (m-tiles, parts): blocks of one part run in step and share the cache's
// tiles in L2.
//
// One block fills a multiprocessor: 230 KB of shared memory (queries, two tiles of the cache, P)
// and all registers (240 for each consumer thread, of which 128 hold O; 24 for a producer).
#pragma once

#include "cuda/common/ptx/block.cuh"
#include "cuda/common/ptx/grid.cuh"
#include "cuda/mla_decode/consumer.cuh"
#include "cuda/mla_decode/producer.cuh"

namespace fastnorm::cuda::mla {

__device__ __forceinline__ uint32_t shared_start() {
  extern __shared__ __align__(1024) unsigned char mla_shared[];
  return ptx::shared_address(mla_shared);
}

// For whole warps. Read anew in each role, so that no role holds registers for another.
__device__ __forceinline__ Place find_place() {
  Place place;
  place.shared = shared_start();
  const int thread = static_cast<int>(ptx::thread_index());
  // From one lane, so that the compiler knows them to be the same in a warp.
  place.group = __shfl_sync(~0u, thread / kGroup, 0);
  place.thread = thread % kGroup;
  place.warp = __shfl_sync(~0u, place.thread / 32, 0);
  place.lane = thread % 32;
  place.row = place.warp * 16 + place.lane / 4;
  return place;
}

// Arrivals: full barriers take the thread that issues a box, or each warp that copies rows; free
// ones each warp that reads.
__device__ __forceinline__ void init_barriers(const MlaDecodeParams& p, uint32_t shared) {
  const int copying = p.boxed_pages != 0 ? 1 : kWarps;
  ptx::mbarrier_init(shared + kFullQ, p.q_access == RowAccess::kRows ? kQueryWarps : 1);
  for (int c = 0; c < kSubTiles; ++c) {
    ptx::mbarrier_init(shared + kFullEven + c * 8, copying);
    ptx::mbarrier_init(shared + kFullOdd + c * 8, copying);
  }
  for (uint32_t half = kFreeEvenLeft; half <= kFreeOddRight; half += 8) {
    ptx::mbarrier_init(shared + half, kWarps);
  }
  ptx::mbarrier_init(shared + kFreeQ, 1);
  ptx::mbarrier_init(shared + kFreeStage, 2 * kWarps);
  ptx::fence_mbarrier_init();
  ptx::fence_async_proxy();
}

__device__ __forceinline__ void prefetch_maps(const MlaDecodeMaps& maps) {
  for (const CUtensorMap* map : {&maps.q_nope, &maps.q_pe, &maps.ckv, &maps.kpe, &maps.o}) {
    ptx::tma_prefetch_map(map);
  }
}

template <Dtype kDtype, bool kRecords>
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_kernel(const __grid_constant__ MlaDecodeMaps maps,
                      const __grid_constant__ MlaDecodeParams p) {
  if (threadIdx.x == 0) init_barriers(p, shared_start());
  if (threadIdx.x == kConsumers) prefetch_maps(maps);
  __syncthreads();
  Recorder<kRecords> record(find_place());
  ptx::grid_wait();
  // Behind the wait: the kernel that merges pieces may then read the plan before its own wait.
  if (p.attention_triggers) ptx::grid_trigger();
  record.open(p, find_place(), FASTNORM_PROFILE_WAIT_PLAN);
  record.end(FASTNORM_PROFILE_WAIT_PLAN);
  if (__shfl_sync(~0u, threadIdx.x / kGroup, 0) == 2) {
    ptx::lower_registers<24>();
    const Place place = find_place();
    if (p.boxed_pages == 0) {
      produce<false>(p, maps, place, record);
    } else if (p.page.size < kMlaTileTokens || p.q_access == RowAccess::kRows) {
      produce<true>(p, maps, place, record);
    } else if (place.warp == 0) {
      // A profile is written by the first thread.
      if (kRecords ? place.lane == 0 : ptx::elect_thread()) produce_pages(p, maps, place, record);
    }
  } else {
    ptx::raise_registers<240>();
    consume<kDtype>(p, maps, find_place(), record);
  }
  record.finish(p, find_place());
}

}  // namespace fastnorm::cuda::mla
