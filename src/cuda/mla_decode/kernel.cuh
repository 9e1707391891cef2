// Attention of an MLA decode call: a thread block computes one m-tile of 64 query rows for the
// pieces of its part. Grid (m-tiles, parts): blocks of one part run in step and share the cache's
// tiles in L2.
//
// One block fills a multiprocessor: 230 KB of shared memory (queries, two tiles of the cache, P)
// and all registers (240 for each consumer thread, of which 128 hold O; 24 for a producer).
#pragma once

#include "cuda/common/ptx/grid.cuh"
#include "cuda/mla_decode/consumer.cuh"
#include "cuda/mla_decode/producer.cuh"

namespace fastnorm::cuda::mla {

__device__ __forceinline__ Place find_place() {
  extern __shared__ __align__(1024) unsigned char mla_shared[];
  Place place;
  place.shared = ptx::shared_address(mla_shared);
  const int thread = static_cast<int>(threadIdx.x);
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
__device__ __forceinline__ void init_barriers(const MlaDecodeParams& p, const Place& place) {
  const int copying = p.boxed_pages != 0 ? 1 : kWarps;
  ptx::mbarrier_init(place.shared + kFullQ, p.q_access == RowAccess::kRows ? kQueryWarps : 1);
  for (int c = 0; c < kSubTiles; ++c) {
    ptx::mbarrier_init(place.shared + kFullEven + c * 8, copying);
    ptx::mbarrier_init(place.shared + kFullOdd + c * 8, copying);
  }
  for (uint32_t half = kFreeEvenLeft; half <= kFreeOddRight; half += 8) {
    ptx::mbarrier_init(place.shared + half, kWarps);
  }
  ptx::mbarrier_init(place.shared + kFreeQ, 1);
  ptx::mbarrier_init(place.shared + kFreeStage, 2 * kWarps);
  ptx::fence_mbarrier_init();
  ptx::fence_async_proxy();
}

template <Dtype kDtype, bool kRecords>
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_kernel(const __grid_constant__ MlaDecodeMaps maps,
                      const __grid_constant__ MlaDecodeParams p) {
  const Place place = find_place();
  if (threadIdx.x == 0) init_barriers(p, place);
  __syncthreads();
  const Recorder<kRecords> record(p, place);
  record.begin(FASTNORM_PROFILE_WAIT_PLAN);
  ptx::grid_wait();
  // Behind the wait: the kernel that merges pieces may then read the plan before its own wait.
  ptx::grid_trigger();
  record.end(FASTNORM_PROFILE_WAIT_PLAN);
  const MlaDecodePart part = p.parts[blockIdx.y];
  if (place.group == 2) {
    ptx::lower_registers<24>();
    if (p.boxed_pages != 0) {
      if (place.warp == 0 || p.q_access == RowAccess::kRows) {
        produce<true>(p, maps, place, part, record);
      }
    } else {
      produce<false>(p, maps, place, part, record);
    }
  } else {
    ptx::raise_registers<240>();
    consume<kDtype>(p, maps, place, part, record);
  }
  record.finish(p, place);
}

}  // namespace fastnorm::cuda::mla
