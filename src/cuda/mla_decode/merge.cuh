// Merges the pieces of split requests: o = sum of w[k] o[k] with w[k] = exp2(lse[k] - lse), in the
// order of the pieces. It starts while the attention kernel runs and reads the plan, which is older
// than that, before it waits.
#pragma once

#include <climits>

#include "cuda/common/ptx/grid.cuh"
#include "cuda/common/ptx/memory.cuh"
#include "cuda/mla_decode/pair.cuh"
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
    o = reinterpret_cast<const float4*>(p.partial_o + at * kMlaLatent) + column4;
  }
  __device__ __forceinline__ float lse_of(int piece) const { return __ldcg(lse + piece * pitch); }
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
// What normalises a row whose pieces have this sum of weights, relative to their maximum.
__device__ __forceinline__ float merged_factor(const MlaDecodeParams& p, int row, float maximum,
                                               float sum) {
  if (!(sum > 0)) return 1.0f;
  return beside_sink(p, row, ptx::log2_approx(sum) + maximum) / sum;
}
__device__ __forceinline__ void store_merged_lse(const MlaDecodeParams& p, int request, int row,
                                                 float maximum, float sum) {
  if (p.lse == nullptr) return;
  const int token = tokens_of(p, request).first + row / p.heads, head = row % p.heads;
  p.lse[token * p.lse_token_stride + head * p.lse_head_stride] =
      sum > 0 ? (ptx::log2_approx(sum) + maximum) * p.lse_scale : -INFINITY;
}

// Few pieces: a warp merges a row.
template <Dtype kDtype>
__device__ __forceinline__ void merge_few(const MlaDecodeParams& p, const MlaDecodeSplit& split,
                                          int row, int lane) {
  const MergedRow pieces(p, split, row, lane);
  float lse[kMlaFewPieces], maximum = -INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < kMlaFewPieces; ++k) {
    lse[k] = -INFINITY;
    ptx::ld_global_cg_f32_if(lse[k], pieces.lse + k * pieces.pitch, k < split.pieces);
  }
  float4 o[4] = {};
#pragma unroll
  for (int k0 = 0; k0 < kMlaFewPieces; k0 += 2) {  // two pieces on their way
    if (k0 >= split.pieces) break;
    float4 v[2][4] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        ptx::ld_global_cg_v4_if(v[k][c], pieces.o + (k0 + k) * pieces.pitch * 128 + c * 32,
                                k0 + k < split.pieces);
      }
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
  const float factor = merged_factor(p, row, maximum, sum);
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
  constexpr int kAhead = 16 / kSteps;  // a warp's pieces on their way
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int count = split.pieces;
  const MergedRow pieces(p, split, row, quarter * 32 + lane);
  float4 v[kAhead][kSteps] = {}, o[kSteps] = {};
  float lse[kAhead];
  // The warp's next piece: its address steps on, which takes fewer registers than one of each.
  const float4* next_o = pieces.o + warp * pieces.pitch * 128;
  const float* next_lse = pieces.lse + warp * pieces.pitch;
  const auto load = [&](int first) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const bool exists = first + warp + kMergeWarps * j < count;
      lse[j] = -INFINITY;
      ptx::ld_global_cg_f32_if(lse[j], next_lse, exists);
#pragma unroll
      for (int c = 0; c < kSteps; ++c) ptx::ld_global_cg_v4_if(v[j][c], next_o + c * 32, exists);
      next_lse += kMergeWarps * pieces.pitch;
      next_o += kMergeWarps * pieces.pitch * 128;
    }
  };
  load(0);
  float maximum = -INFINITY, sum = 0;
  float held[5];  // the lane's first, kept for the sum
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    held[i] = -INFINITY;
    ptx::ld_global_cg_f32_if(held[i], pieces.lse + (lane + 32 * i) * pieces.pitch,
                             lane + 32 * i < count);
  }
#pragma unroll
  for (int i = 0; i < 5; ++i) maximum = fmaxf(maximum, held[i]);
#pragma unroll 1
  for (int k = lane + 160; k < count; k += 32) maximum = fmaxf(maximum, pieces.lse_of(k));
#pragma unroll
  for (int d = 16; d > 0; d /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, d));
  maximum = finite_maximum(maximum);
#pragma unroll
  for (int i = 0; i < 5; ++i) sum += ptx::exp2_approx(held[i] - maximum);
#pragma unroll 1
  for (int k = lane + 160; k < count; k += 32) {
    sum += ptx::exp2_approx(pieces.lse_of(k) - maximum);
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);

#pragma unroll 1
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
                         merged_factor(p, row, maximum, sum));
  }
  if (threadIdx.x == 0 && quarter == 0) {
    store_merged_lse(p, split.request, row, maximum, sum);
  }
  __syncthreads();
}

// The splits of the plan, by the units that they take. A thread holds one of them from the start,
// so that a block knows its first split one access to memory after the plan's header.
struct SplitSearch {
  const MlaDecodeSplit* splits;
  int count;
  int first_unit;  // of the thread's split

  // `room`: entries of the list, used or not.
  __device__ __forceinline__ SplitSearch(const MlaDecodeSplit* list, int room, int* units,
                                         const MlaDecodePlanHeader* plan)
      : splits(list) {
    const int thread = static_cast<int>(threadIdx.x);
    const int first = thread < room ? list[thread].first_unit : 0;
    const MlaDecodePlanHeader header = *plan;
    count = header.splits;
    *units = header.units;
    first_unit = thread < count ? first : INT_MAX;
  }

  // The last split whose first unit is not behind `unit`. For all threads of the block.
  __device__ __forceinline__ MlaDecodeSplit of(int unit) const {
    if (count <= kMergeThreads) return splits[__syncthreads_count(first_unit <= unit) - 1];
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (splits[middle].first_unit <= unit) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return splits[low];
  }
};

template <Dtype kDtype>
__global__ void __launch_bounds__(kMergeThreads, 2)
    mla_decode_merge_kernel(const __grid_constant__ MlaDecodeParams p) {
  __shared__ float4 sums[kMergeWarps][128];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int units = 0;
  const SplitSearch search(p.splits, p.splits_room, &units, p.plan);
  int unit = static_cast<int>(blockIdx.x);
  MlaDecodeSplit split = {};
  if (unit < units) split = search.of(unit);
  ptx::grid_wait();  // in blocks without work, too: the stream's next kernel relies on it
  if (p.call_triggers) ptx::grid_trigger();
  while (unit < units) {
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
    if (unit < units) split = search.of(unit);
  }
}

}  // namespace fastnorm::cuda::mla
