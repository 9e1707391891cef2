// dweight, dbias and the sums of a branch, from the sums of the row order's blocks.
#pragma once

#include "cuda/common/activation.cuh"
#include "cuda/common/follow.cuh"
#include "cuda/norm_backward/arithmetic.cuh"
#include "cuda/norm_backward/fold_columns.cuh"
#include "cuda/norm_backward/rows.cuh"

namespace fastnorm::cuda {

// The bit that lets sum_tensor(p, sum) accumulate.
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
  follow_stream((p.bits & kBackwardTrigger) != 0);

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
