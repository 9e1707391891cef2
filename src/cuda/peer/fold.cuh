// The sum of a row that some of its threads may not have in full: its last barrier before the
// outputs also tells all threads of the row whether to store them.
#pragma once

#include "cuda/common/tile.cuh"
#include "cuda/peer/exchange.cuh"

namespace fastnorm::cuda {

// What a block whose row is incomplete sends to its cluster in place of a sum of squares.
inline constexpr float kPeerNoSum = -1.0f;

// As fold_cluster(). False: a block of the cluster has ended.
template <class Tile>
__device__ __forceinline__ bool fold_cluster_unless_ended(float& q, bool ended,
                                                          FoldScratch<Tile>& scratch,
                                                          const Place<Tile>& place) {
  scratch.values[threadIdx.x] = q;
  const bool any = ptx::any_of_block(ended);
  exchange_folds(scratch.exchange, scratch.barrier, place, [&] {
    const float folded = fold_warps<Tile, Sum>(scratch.values, place.lane);
    return any ? kPeerNoSum : folded;
  });
  float b[Tile::kBlocks];
  bool complete = true;
#pragma unroll
  for (int i = 0; i < Tile::kBlocks; ++i) {
    b[i] = scratch.exchange[i * 32 + place.lane];
    complete &= b[i] != kPeerNoSum;
  }
  q = fold_lanes<32>(fold_registers(b));
  return complete;
}

// As fold_row(). False: a thread of the row has ended. Blocks call it again and again.
template <class Tile>
__device__ __forceinline__ bool fold_unless_ended(float& q, bool ended, FoldScratch<Tile>& scratch,
                                                  const Place<Tile>& place) {
  if constexpr (Tile::kCluster) {
    return fold_cluster_unless_ended(q, ended, scratch, place);
  } else {
    scratch.values[threadIdx.x] = q;
    if (ptx::any_of_block(ended)) return false;
    if constexpr (kOneWarpFolds<Tile>) {
      q = fold_by_one_warp<Sum>(scratch, place);
    } else {
      q = fold_lanes<32>(fold_warps<Tile, Sum>(scratch.values, place.lane));
      __syncthreads();  // the next row's values come
    }
    return true;
  }
}

}  // namespace fastnorm::cuda
