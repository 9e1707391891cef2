// The second launch: sums of blocks become dweight and dbias.
//
// A block folds `columns` groups of four columns with kThreads / columns threads each. The highest
// digits of a row block's number are in a thread's registers, then in the warp, then in the lane.
#pragma once

#include "bench/lab/backward/device.cuh"

namespace lab {

constexpr int kFoldThreads = 256, kMostOfThread = 16;

// Row blocks first, first + step, .. of one group of columns.
template <int kCount>
LAB_DEVICE float4 fold_blocks(const float* partials, const Params& p, int first, int step) {
  float4 v[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int block = first + k * step;
    v[k] = make_float4(0, 0, 0, 0);
    if (block < p.blocks)
      v[k] = __ldcg(reinterpret_cast<const float4*>(partials + int64_t{block} * p.n));
  }
  return fold_registers<kCount>(v);
}

LAB_DEVICE void store_gradient(void* gradient, int column, float4 v, bool f32) {
  v = add(v, make_float4(0, 0, 0, 0));
  if (f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(gradient) + column) = v;
  } else {
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(gradient) + column) =
        make_uint2(pack(v.x, v.y), pack(v.z, v.w));
  }
}

// Grid: x is a slice of the columns, y the gradient. `columns` is a power of two of at most 32.
static __global__ void __launch_bounds__(kFoldThreads)
    fold_kernel(const __grid_constant__ Params p, int columns) {
  constexpr int kWarps = kFoldThreads / 32;
  __shared__ float4 sums[kFoldThreads];
  grid_wait();
  const int thread = threadIdx.x, group = thread & (columns - 1);
  const int first = thread / columns, step = kFoldThreads / columns;
  const int column = (blockIdx.x * columns + group) * 4;
  const float* const partials = p.partials[blockIdx.y] + column;
  const bool wanted = column < p.n;
  float4 s = make_float4(0, 0, 0, 0);
  if (wanted) {
    switch (p.fold_width > step ? p.fold_width / step : 1) {  // the launch keeps it <= 16
      case 1:
        s = fold_blocks<1>(partials, p, first, step);
        break;
      case 2:
        s = fold_blocks<2>(partials, p, first, step);
        break;
      case 4:
        s = fold_blocks<4>(partials, p, first, step);
        break;
      case 8:
        s = fold_blocks<8>(partials, p, first, step);
        break;
      default:
        s = fold_blocks<kMostOfThread>(partials, p, first, step);
        break;
    }
  }
  sums[thread] = s;
  __syncthreads();
  if (thread >= 32) return;
  float4 q[kWarps];
#pragma unroll
  for (int k = 0; k < kWarps; ++k) q[k] = sums[k * 32 + thread];
  float4 v = fold_registers<kWarps>(q);
  for (int half = 16; half >= columns; half /= 2) {
    v = add(v, make_float4(__shfl_xor_sync(~0u, v.x, half), __shfl_xor_sync(~0u, v.y, half),
                           __shfl_xor_sync(~0u, v.z, half), __shfl_xor_sync(~0u, v.w, half)));
  }
  if (thread < columns && wanted)
    store_gradient(p.gradients[blockIdx.y], column, v, p.f32_gradients);
}

}  // namespace lab
