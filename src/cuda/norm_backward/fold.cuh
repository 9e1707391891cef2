// The sums of the blocks of the row order, folded to dweight and dbias. A block folds 32 columns: the
// numbers of the row order's blocks have their highest digits in registers, then in warps, the lowest
// in lanes.
#pragma once

#include "core/norm_backward_rows.h"
#include "cuda/common/ptx/grid.cuh"
#include "cuda/norm_backward/arithmetic.cuh"
#include "cuda/norm_backward/rows.cuh"

namespace fastnorm::cuda {

template <int kThreads>
__device__ __forceinline__ void fold_blocks_of_rows(const NormBackwardParams& p) {
  constexpr int kFours = kBackwardFoldColumns / 4;  // threads side by side
  constexpr int kRows = kThreads / kFours;          // blocks that threads load at once
  constexpr int kRegisters = static_cast<int>(kBackwardMaxBlocks) / kRows;
  constexpr int kWarps = kThreads / 32;
  static_assert(kRegisters * kRows == kBackwardMaxBlocks && 32 % kFours == 0);
  struct Buffer {
    alignas(16) float values[4][kThreads];
  };
  auto& values = ptx::block_shared<Buffer>().values;
  const auto tiles = static_cast<uint32_t>((p.n + kBackwardFoldColumns - 1) / kBackwardFoldColumns);
  const int sum = p.dweight.data == nullptr || blockIdx.x >= tiles ? 1 : 0;
  const uint32_t tile = blockIdx.x % tiles;
  const int64_t column = int64_t{tile} * kBackwardFoldColumns + threadIdx.x % kFours * 4;
  const uint32_t first = threadIdx.x / kFours;
  const BackwardTensor& out = sum == 0 ? p.dweight : p.dbias;
  const bool accumulates =
      (p.bits & (sum == 0 ? kBackwardAccumulateDweight : kBackwardAccumulateDbias)) != 0;
  ptx::grid_wait();
  if ((p.bits & kBackwardTrigger) != 0) ptx::grid_trigger();

  for (uint32_t group = blockIdx.y; group < p.groups; group += gridDim.y) {
    const float* const partial =
        p.partial[sum] + int64_t{group} * p.blocks * p.partial_stride + column;
    float q[4][kRegisters];
#pragma unroll
    for (int r = 0; r < kRegisters; ++r) {
      const uint32_t block = first + r * kRows;
      uint4 v = make_uint4(0, 0, 0, 0);
      ptx::ld_global_v4_if(v, partial + block * p.partial_stride, block < p.blocks && column < p.n);
      q[0][r] = __uint_as_float(v.x), q[1][r] = __uint_as_float(v.y);
      q[2][r] = __uint_as_float(v.z), q[3][r] = __uint_as_float(v.w);
    }
    __syncthreads();  // the group before has been read
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i][threadIdx.x] = fold_registers(q[i]);
    __syncthreads();
    if (threadIdx.x >= 32) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float w[kWarps];
#pragma unroll
      for (int k = 0; k < kWarps; ++k) w[k] = values[i][k * 32 + threadIdx.x];
      float total = fold_registers(w);
#pragma unroll
      for (int half = 16; half >= kFours; half /= 2)
        total = __fadd_rn(total, __shfl_xor_sync(~0u, total, half));
      if (threadIdx.x < kFours && column + i < p.n) {
        char* const to =
            group_address(p, out, group) + (column + i) * (out.dtype == Dtype::kF32 ? 4 : 2);
        store_sum(p, out, to, total, accumulates);
      }
    }
  }
}

}  // namespace fastnorm::cuda
