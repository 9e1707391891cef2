// The sums of the blocks of the row order, folded to dweight and dbias. A thread block folds 32
// columns: first the sums of those that share a block's lanes, then the blocks. The highest digits
// of a block's number are in registers, the next ones in warps, the lowest in lanes.
#pragma once

#include "core/norm_backward_rows.h"
#include "cuda/common/activation.cuh"
#include "cuda/common/ptx/grid.cuh"
#include "cuda/norm_backward/arithmetic.cuh"
#include "cuda/norm_backward/rows.cuh"

namespace fastnorm::cuda {

template <int kThreads>
struct FoldBuffer {
  alignas(16) float values[4][kThreads];
};

__device__ __forceinline__ void load_four(float (&four)[4], const float* from, bool there) {
  uint4 v = make_uint4(0, 0, 0, 0);
  ptx::ld_global_v4_if(v, from, there);
  four[0] = __uint_as_float(v.x), four[1] = __uint_as_float(v.y);
  four[2] = __uint_as_float(v.z), four[3] = __uint_as_float(v.w);
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

// Of sum_tensor(p, sum).
__device__ __forceinline__ uint32_t accumulate_bit(int sum) {
  return sum == 0   ? kBackwardAccumulateDweight
         : sum == 1 ? kBackwardAccumulateDbias
         : sum == 2 ? kBackwardAccumulateBranchDweight
         : sum == 3 ? kBackwardAccumulateBranchDbias
                    : kBackwardAccumulateResidualGate;
}

// The sum that is wanted after `before` others.
__device__ __forceinline__ int wanted_sum(const NormBackwardParams& p, uint32_t before) {
  int wanted = 0;
#pragma unroll
  for (int sum = 0; sum < kBackwardSums; ++sum) {
    if (sum_tensor(p, sum).data == nullptr) continue;
    if (before == 0) wanted = sum;
    --before;
  }
  return wanted;
}

// Without an array in local memory.
__device__ __forceinline__ float element_of(const float (&four)[4], int i) {
  return i == 0 ? four[0] : i == 1 ? four[1] : i == 2 ? four[2] : four[3];
}

// What multiplies a sum of dresidual_gate.
__device__ __forceinline__ float gate_slope(const NormBackwardParams& p, uint32_t group,
                                            int64_t column) {
  const BackwardTensor& gate = p.branch.residual_gate;
  float slope[1] = {load_any_element(
      group_address(p, gate, group) + column * (gate.dtype == Dtype::kF32 ? 4 : 2), gate.dtype)};
  activation_slope(slope, p.branch.act);
  return __fmul_rn(slope[0], p.branch.alpha);
}

template <int kThreads>
__device__ __forceinline__ void fold_blocks_of_rows(const NormBackwardParams& p) {
  auto& values = ptx::block_shared<FoldBuffer<kThreads>>().values;
  const auto tiles = static_cast<uint32_t>((p.n + kBackwardFoldColumns - 1) / kBackwardFoldColumns);
  const int sum = wanted_sum(p, blockIdx.x / tiles);
  const int64_t first = int64_t{blockIdx.x % tiles} * kBackwardFoldColumns;
  const BackwardTensor& out = sum_tensor(p, sum);
  const bool accumulates = (p.bits & accumulate_bit(sum)) != 0;
  // Without rows there is no gate.
  const bool has_slope = sum + 1 == kBackwardSums && p.branch.residual_gate.data != nullptr;
  ptx::grid_wait();
  if ((p.bits & kBackwardTrigger) != 0) ptx::grid_trigger();

  for (uint32_t group = blockIdx.y; group < p.groups; group += gridDim.y) {
    const float* const partial =
        p.partial[sum] + ((int64_t{group} * p.blocks) << p.split_bits) * p.partial_stride;
    fold_columns<kThreads>(values, partial, p.partial_stride, p.blocks, 1u << p.split_bits, p.n,
                           first, [&](int64_t column, const float(&total)[4]) {
                             const int bytes = out.dtype == Dtype::kF32 ? 4 : 2;
                             char* const to = group_address(p, out, group) + column * bytes;
                             if (has_slope) {
#pragma unroll 1
                               for (int i = 0; i < 4 && column + i < p.n; ++i) {
                                 const float sum = positive_zero(element_of(total, i));
                                 store_sum(p, out, to + i * bytes,
                                           __fmul_rn(sum, gate_slope(p, group, column + i)),
                                           accumulates);
                               }
                               return;
                             }
#pragma unroll
                             for (int i = 0; i < 4; ++i) {
                               if (column + i < p.n)
                                 store_sum(p, out, to + i * bytes, total[i], accumulates);
                             }
                           });
  }
}

}  // namespace fastnorm::cuda
