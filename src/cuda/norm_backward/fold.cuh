// The sums of the blocks of the row order, folded to dweight and dbias. A block folds 32 columns:
// the numbers of the row order's blocks have their highest digits in registers, then in warps, the
// lowest in lanes.
#pragma once

#include "core/norm_backward_rows.h"
#include "cuda/common/ptx/grid.cuh"
#include "cuda/norm_backward/arithmetic.cuh"
#include "cuda/norm_backward/rows.cuh"

namespace fastnorm::cuda {

template <int kThreads>
struct FoldBuffer {
  alignas(16) float values[4][kThreads];
};

// Folds the 32 columns from `first` on, of n, of so many blocks' sums, and calls put(column, sum).
template <int kThreads, typename Put>
__device__ __forceinline__ void fold_columns(float (&values)[4][kThreads], const float* partial,
                                             int64_t partial_stride, uint32_t blocks, int64_t n,
                                             int64_t first, Put put) {
  constexpr int kFours = kBackwardFoldColumns / 4;  // threads side by side
  constexpr int kRows = kThreads / kFours;          // blocks that threads load at once
  constexpr int kRegisters = static_cast<int>(kBackwardMaxBlocks) / kRows;
  constexpr int kWarps = kThreads / 32;
  static_assert(kRegisters * kRows == kBackwardMaxBlocks && 32 % kFours == 0);
  const int64_t column = first + threadIdx.x % kFours * 4;
  const uint32_t first_block = threadIdx.x / kFours;
  float q[4][kRegisters];
#pragma unroll
  for (int r = 0; r < kRegisters; ++r) {
    const uint32_t block = first_block + r * kRows;
    uint4 v = make_uint4(0, 0, 0, 0);
    ptx::ld_global_v4_if(v, partial + column + block * partial_stride,
                         block < blocks && column < n);
    q[0][r] = __uint_as_float(v.x), q[1][r] = __uint_as_float(v.y);
    q[2][r] = __uint_as_float(v.z), q[3][r] = __uint_as_float(v.w);
  }
  __syncthreads();  // the values before have been read
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i][threadIdx.x] = fold_registers(q[i]);
  __syncthreads();
  if (threadIdx.x >= 32) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float w[kWarps];
#pragma unroll
    for (int k = 0; k < kWarps; ++k) w[k] = values[i][k * 32 + threadIdx.x];
    float total = fold_registers(w);
#pragma unroll
    for (int half = 16; half >= kFours; half /= 2)
      total = __fadd_rn(total, __shfl_xor_sync(~0u, total, half));
    if (threadIdx.x < kFours && column + i < n) put(column + i, total);
  }
}

template <int kThreads>
__device__ __forceinline__ void fold_blocks_of_rows(const NormBackwardParams& p) {
  auto& values = ptx::block_shared<FoldBuffer<kThreads>>().values;
  const auto tiles = static_cast<uint32_t>((p.n + kBackwardFoldColumns - 1) / kBackwardFoldColumns);
  const int sum = p.dweight.data == nullptr || blockIdx.x >= tiles ? 1 : 0;
  const int64_t first = int64_t{blockIdx.x % tiles} * kBackwardFoldColumns;
  const BackwardTensor& out = sum == 0 ? p.dweight : p.dbias;
  const bool accumulates =
      (p.bits & (sum == 0 ? kBackwardAccumulateDweight : kBackwardAccumulateDbias)) != 0;
  ptx::grid_wait();
  if ((p.bits & kBackwardTrigger) != 0) ptx::grid_trigger();

  for (uint32_t group = blockIdx.y; group < p.groups; group += gridDim.y) {
    const float* const partial = p.partial[sum] + int64_t{group} * p.blocks * p.partial_stride;
    fold_columns<kThreads>(
        values, partial, p.partial_stride, p.blocks, p.n, first, [&](int64_t column, float total) {
          char* const to =
              group_address(p, out, group) + column * (out.dtype == Dtype::kF32 ? 4 : 2);
          store_sum(p, out, to, total, accumulates);
        });
  }
}

}  // namespace fastnorm::cuda
