// The sums of the blocks of the row order, folded to dweight and dbias of all parts. A block folds
// 32 columns of a group.
#pragma once

#include "cuda/common/follow.cuh"
#include "cuda/norm_backward/fold.cuh"
#include "cuda/norm_heads_backward/params.h"

namespace fastnorm::cuda {

// Stores the sum of a group's column.
__device__ __forceinline__ void put_heads_sum(const HeadsSumOut& out, uint32_t group,
                                              int64_t column, float sum) {
  char* const to =
      out.data + int64_t{group} * out.stride + column * (out.dtype == Dtype::kF32 ? 4 : 2);
  sum = positive_zero(sum);
  if (out.accumulates) sum = __fadd_rn(load_any_element(to, out.dtype), sum);
  store_any_element(to, sum, out.dtype);
}

template <int kThreads>
__device__ __forceinline__ void fold_heads_sums(const HeadsFoldParams& p) {
  auto& values = ptx::block_shared<FoldBuffer<kThreads>>().values;
  int i = 0;
  while (i + 1 < p.count && blockIdx.x >= p.sum[i + 1].first_block) ++i;
  const HeadsFoldSum& s = p.sum[i];
  const auto tiles = static_cast<uint32_t>((s.n + kBackwardFoldColumns - 1) / kBackwardFoldColumns);
  const uint32_t number = blockIdx.x - s.first_block, group = number / tiles;
  const int64_t first = int64_t{number - group * tiles} * kBackwardFoldColumns;
  follow_stream(p.triggers);
  const float* const partial = s.partial + int64_t{group} * s.blocks * s.split * s.partial_stride;
  fold_columns<kThreads>(values, partial, s.partial_stride, s.blocks, s.split, s.n, first,
                         [&](int64_t column, const float(&sum)[4]) {
#pragma unroll
                           for (int k = 0; k < 4; ++k) {
                             if (column + k < s.n) put_heads_sum(s.out, group, column + k, sum[k]);
                           }
                         });
}

}  // namespace fastnorm::cuda
