// The sums of the blocks of the row order, folded. A thread block folds 32 columns: first the sums
// of those that share a block's lanes, then the blocks. The highest digits of a block's number are
// in registers, the next ones in warps, the lowest in lanes.
#pragma once

#include "core/norm_backward/plan.h"
#include "core/norm_backward/rows.h"
#include "cuda/common/element.cuh"
#include "cuda/common/ptx/memory.cuh"
#include "cuda/common/tile.cuh"

namespace fastnorm::cuda {

template <int kThreads>
struct FoldBuffer {
  alignas(16) float values[4][kThreads];
};

__device__ __forceinline__ void load_four(float (&four)[4], const float* from, bool there) {
  uint4 v = make_uint4(0, 0, 0, 0);
  ptx::ld_global_v4_if(v, from, there);
  as_floats(four, v);
}

// Four columns of a block's sums, of which there are `split`, 2 or more: [split][stride].
__device__ __forceinline__ void fold_split(float (&q)[4], const float* partial, int64_t stride,
                                           uint32_t split, bool there) {
  static_assert(kBackwardMaxSplit == 4);
  float part[kBackwardMaxSplit][4];
#pragma unroll
  for (uint32_t s = 0; s < kBackwardMaxSplit; ++s)
    load_four(part[s], partial + s * stride, there && s < split);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (split > 2) {
      part[0][i] = __fadd_rn(part[0][i], part[2][i]);
      part[1][i] = __fadd_rn(part[1][i], part[3][i]);
    }
    q[i] = __fadd_rn(part[0][i], part[1][i]);
  }
}

// Folds the 32 columns from `first` on, of n, of so many blocks' sums, and calls put(column, sums)
// for each four of them, of which the last may be past n.
template <int kThreads, typename Put>
__device__ __forceinline__ void fold_columns(float (&values)[4][kThreads], const float* partial,
                                             int64_t partial_stride, uint32_t blocks,
                                             uint32_t split, int64_t n, int64_t first, Put put) {
  constexpr int kFours = kBackwardFoldColumns / 4;  // threads side by side
  constexpr int kRows = kThreads / kFours;          // blocks that threads load at once
  constexpr int kRegisters = static_cast<int>(kBackwardMaxBlocks) / kRows;
  constexpr int kWarps = kThreads / 32;
  static_assert(kRegisters * kRows == kBackwardMaxBlocks && 32 % kFours == 0);
  const int64_t column = first + threadIdx.x % kFours * 4;
  const uint32_t first_block = threadIdx.x / kFours;
  float q[4][kRegisters];
  const auto load = [&](auto load_block) {
#pragma unroll
    for (int r = 0; r < kRegisters; ++r) {
      const uint32_t block = first_block + r * kRows;
      float of_block[4];
      load_block(of_block, partial + column + block * split * partial_stride,
                 block < blocks && column < n);
#pragma unroll
      for (int i = 0; i < 4; ++i) q[i][r] = of_block[i];
    }
  };
  if (split == 1) {
    load(load_four);
  } else {
    load([&](float(&four)[4], const float* from, bool there) {
      fold_split(four, from, partial_stride, split, there);
    });
  }
  __syncthreads();  // the values before have been read
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i][threadIdx.x] = fold_registers(q[i]);
  __syncthreads();
  if (threadIdx.x >= 32) return;
  float total[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float w[kWarps];
#pragma unroll
    for (int k = 0; k < kWarps; ++k) w[k] = values[i][k * 32 + threadIdx.x];
    total[i] = fold_registers(w);
#pragma unroll
    for (int half = 16; half >= kFours; half /= 2)
      total[i] = __fadd_rn(total[i], __shfl_xor_sync(~0u, total[i], half));
  }
  if (threadIdx.x < kFours) put(column, total);
}

}  // namespace fastnorm::cuda
