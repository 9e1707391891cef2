// Merges the pieces of split requests: o = sum of w[k] o[k] with w[k] = exp2(lse[k] - lse), in the
// order of the pieces. It starts while the attention kernel runs and reads the plan, which is older
// than that, before it waits.
#pragma once

#include "cuda/common/ptx/grid.cuh"
#include "cuda/mla_decode/tile.cuh"
#include "cuda/mla_decode/work.cuh"

namespace fastnorm::cuda::mla {

inline constexpr int kMergeThreads = 256;
inline constexpr int kMergeWarps = kMergeThreads / 32;

// A row of a split request.
struct MergedRow {
  const float* lse;  // of the first piece; the next is `pitch` rows further
  const float4* o;   // likewise, of the lane's columns
  int64_t pitch;     // rows
  int pieces;

  __device__ __forceinline__ MergedRow(const MlaDecodeParams& p, const MlaDecodeSplit& split,
                                       int row, int column4)
      : pitch(static_cast<int64_t>(p.m_tiles) * kMlaTileRows), pieces(split.pieces) {
    const int64_t at = split.first_piece * pitch + row;
    lse = p.partial_lse + at;
    o = reinterpret_cast<const float4*>(p.partial_o + at * 512) + column4;
  }
  __device__ __forceinline__ float lse_of(int piece) const { return __ldcg(lse + piece * pitch); }
  __device__ __forceinline__ float4 o_of(int piece, int step) const {
    return __ldcg(o + piece * pitch * 128 + step);
  }
};

__device__ __forceinline__ void add_weighted(float4& sum, float weight, const float4& v) {
  sum.x = __fmaf_rn(weight, v.x, sum.x);
  sum.y = __fmaf_rn(weight, v.y, sum.y);
  sum.z = __fmaf_rn(weight, v.z, sum.z);
  sum.w = __fmaf_rn(weight, v.w, sum.w);
}

// Four columns of a row of the output.
template <Dtype kDtype>
__device__ __forceinline__ void store_merged(const MlaDecodeParams& p, int request, int row,
                                             int column4, const float4& v, float factor) {
  const int token = tokens_of(p, request).first + row / p.heads, head = row % p.heads;
  char* const out = p.o.data + token * p.o.token_stride + head * p.o.head_stride;
  reinterpret_cast<uint2*>(out)[column4] = make_uint2(pack<kDtype>(v.x * factor, v.y * factor),
                                                      pack<kDtype>(v.z * factor, v.w * factor));
}
__device__ __forceinline__ void store_merged_lse(const MlaDecodeParams& p, int request, int row,
                                                 float maximum, float sum) {
  if (p.lse == nullptr) return;
  const int token = tokens_of(p, request).first + row / p.heads, head = row % p.heads;
  p.lse[token * p.lse_token_stride + head * p.lse_head_stride] =
      sum > 0 ? (ptx::log2_approx(sum) + maximum) * p.lse_scale : -INFINITY;
}

// A maximum to subtract: finite where all pieces are empty.
__device__ __forceinline__ float finite_maximum(float v) { return v == -INFINITY ? 0.0f : v; }

// Few pieces: a warp merges a row.
template <Dtype kDtype>
__device__ __forceinline__ void merge_few(const MlaDecodeParams& p, const MlaDecodeSplit& split,
                                          int row, int lane) {
  const MergedRow pieces(p, split, row, lane);
  float lse[kMlaFewPieces], maximum = -INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < kMlaFewPieces; ++k) lse[k] = k < split.pieces ? pieces.lse_of(k) : -INFINITY;
  float4 o[4] = {};
#pragma unroll
  for (int k0 = 0; k0 < kMlaFewPieces; k0 += 2) {  // two pieces on their way
    if (k0 >= split.pieces) break;
    float4 v[2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (k0 + k >= split.pieces) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) v[k][c] = pieces.o_of(k0 + k, c * 32);
    }
    if (k0 == 0) {
#pragma unroll
      for (int k = 0; k < kMlaFewPieces; ++k) maximum = fmaxf(maximum, lse[k]);
      maximum = finite_maximum(maximum);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (k0 + k >= split.pieces) continue;
      const float weight = ptx::exp2_approx(lse[k0 + k] - maximum);
      sum += weight;
#pragma unroll
      for (int c = 0; c < 4; ++c) add_weighted(o[c], weight, v[k][c]);
    }
  }
  const float factor = sum > 0 ? 1.0f / sum : 1.0f;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    store_merged<kDtype>(p, split.request, row, c * 32 + lane, o[c], factor);
  }
  if (lane == 0) store_merged_lse(p, split.request, row, maximum, sum);
}

// Many pieces: the warps of the block share those of a row (kSteps = 4) or of a quarter of it
// (kSteps = 1). Warp w has pieces w, w + 8, ...
template <Dtype kDtype, int kSteps>
__device__ __forceinline__ void merge_many(const MlaDecodeParams& p, const MlaDecodeSplit& split,
                                           int row, int quarter, float4 (*sums)[128]) {
  constexpr int kAhead = kSteps == 1 ? 8 : 2;  // a warp's pieces on their way
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int count = split.pieces;
  const MergedRow pieces(p, split, row, quarter * 32 + lane);
  float4 v[kAhead][kSteps], o[kSteps] = {};
  float lse[kAhead];
  const auto load = [&](int first) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int k = first + warp + kMergeWarps * j;
      lse[j] = -INFINITY;
      if (k >= count) continue;
      lse[j] = pieces.lse_of(k);
#pragma unroll
      for (int c = 0; c < kSteps; ++c) v[j][c] = pieces.o_of(k, c * 32);
    }
  };
  load(0);
  float maximum = -INFINITY, sum = 0;
  float held[5];  // the lane's first, kept for the sum
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    held[i] = lane + 32 * i < count ? pieces.lse_of(lane + 32 * i) : -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < 5; ++i) maximum = fmaxf(maximum, held[i]);
  for (int k = lane + 160; k < count; k += 32) maximum = fmaxf(maximum, pieces.lse_of(k));
#pragma unroll
  for (int d = 16; d > 0; d /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, d));
  maximum = finite_maximum(maximum);
#pragma unroll
  for (int i = 0; i < 5; ++i) sum += ptx::exp2_approx(held[i] - maximum);
  for (int k = lane + 160; k < count; k += 32) {
    sum += ptx::exp2_approx(pieces.lse_of(k) - maximum);
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);

  for (int first = 0; first < count; first += kMergeWarps * kAhead) {
    if (first != 0) load(first);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (first + warp + kMergeWarps * j >= count) continue;
      const float weight = ptx::exp2_approx(lse[j] - maximum);
#pragma unroll
      for (int c = 0; c < kSteps; ++c) add_weighted(o[c], weight, v[j][c]);
    }
  }
#pragma unroll
  for (int c = 0; c < kSteps; ++c) sums[warp][c * 32 + lane] = o[c];
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  if (column < 32 * kSteps) {
    float4 all = sums[0][column];
#pragma unroll
    for (int w = 1; w < kMergeWarps; ++w) add_weighted(all, 1.0f, sums[w][column]);
    store_merged<kDtype>(p, split.request, row, quarter * 32 + column, all,
                         sum > 0 ? 1.0f / sum : 1.0f);
  }
  if (threadIdx.x == 0 && quarter == 0) {
    store_merged_lse(p, split.request, row, maximum, sum);
  }
  __syncthreads();
}

// The split that a unit belongs to: the last one whose first unit is not behind it. A warp looks at
// 32 at a time.
__device__ __forceinline__ MlaDecodeSplit split_of(const MlaDecodeParams& p, int splits, int unit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int low = 0, span = splits;  // it is in [low, low + span)
  while (span > 1) {
    const int step = (span + 31) / 32;
    const int at = low + lane * step;
    const bool before = lane * step < span && p.splits[at].first_unit <= unit;
    const int last = __popc(__ballot_sync(~0u, before)) - 1;
    low += last * step;
    span = min(step, span - last * step);
  }
  return p.splits[low];
}

template <Dtype kDtype>
__global__ void __launch_bounds__(kMergeThreads, 2)
    mla_decode_merge_kernel(const __grid_constant__ MlaDecodeParams p) {
  __shared__ float4 sums[kMergeWarps][128];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const MlaDecodePlanHeader plan = *p.plan;
  int unit = static_cast<int>(blockIdx.x);
  MlaDecodeSplit split = {};
  if (unit < plan.units) split = split_of(p, plan.splits, unit);
  ptx::grid_wait();  // in blocks without work, too: the stream's next kernel relies on it
  if (p.call_triggers) ptx::grid_trigger();
  while (unit < plan.units) {
    const int inside = unit - split.first_unit;
    const int rows = tokens_of(p, split.request).count * p.heads;
    if (split.pieces <= kMlaFewPieces) {
      const int row = inside * 8 + warp;
      if (row < rows) merge_few<kDtype>(p, split, row, lane);
    } else if (rows > kMlaFewRows) {
      merge_many<kDtype, 4>(p, split, inside, 0, sums);
    } else {
      merge_many<kDtype, 1>(p, split, inside / 4, inside % 4, sums);
    }
    unit += static_cast<int>(gridDim.x);
    if (unit < plan.units) split = split_of(p, plan.splits, unit);
  }
}

}  // namespace fastnorm::cuda::mla
