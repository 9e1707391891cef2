// Rows of a warp or less: at most 512 columns. A warp has several rows, or one.
//
// Registers: the gains, the sums of this thread's columns, a row in hand and the next one. The sums
// of a row need shuffles alone. The lanes of a block fold through shared memory at the end.
#pragma once

#include "bench/lab/backward/device.cuh"

namespace lab {

template <Norm kNorm, int kThreads, int kVectors, int kBlockThreads, int kUnroll>
__global__ void __launch_bounds__(kBlockThreads, 1)
    short_rows_kernel(const __grid_constant__ Params p) {
  constexpr bool kLayer = kNorm == Norm::kLayer;
  constexpr int kLanes = kBlockThreads / kThreads, kSums = kLayer ? 2 : 1;
  constexpr int kWidth = kThreads * kVectors * kPerVector;
  constexpr int kStride = kThreads * kVectorBytes;
  static_assert(kBlockThreads >= kWidth, "a thread or more for each column");
  auto* const lane_sums = reinterpret_cast<float*>(launch_shared());  // [lane][column]
  const int thread = threadIdx.x % kThreads, lane = threadIdx.x / kThreads;
  const int first = blockIdx.x * kLanes;
  const int steps = (p.rows - first + p.step * kUnroll - 1) / (p.step * kUnroll);
  const bool last = (kVectors - 1) * kThreads + thread < p.row_vectors;
  const auto has = [&](int v) { return v < kVectors - 1 || last; };
  const auto row_of = [&](int step, int u) { return first + (step * kUnroll + u) * p.step + lane; };

  struct Rows {
    uint4 x[kUnroll][kVectors], dy[kUnroll][kVectors];
    float rstd[kUnroll], mean[kLayer ? kUnroll : 1];
  };
  const auto load_rows = [&](Rows& to, int step) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int row = row_of(step, u);
      const bool live = row < p.rows;
      const int64_t offset = row * p.row_bytes + thread * kVectorBytes;
      to.rstd[u] = 0;
      if (kLayer) to.mean[u] = 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        to.x[u][v] = to.dy[u][v] = make_uint4(0, 0, 0, 0);
        if (live && has(v)) {
          to.x[u][v] = load(p.x + offset + v * kStride);
          to.dy[u][v] = load(p.dy + offset + v * kStride);
        }
      }
      if (live) {
        to.rstd[u] = __ldg(p.rstd + row);
        if (kLayer) to.mean[u] = __ldg(p.mean + row);
      }
    }
  };
  Rows now;
  load_rows(now, 0);

  float gain[kVectors][kPerVector], dweight[kVectors][kPerVector];
  float dbias[kLayer ? kVectors : 1][kPerVector];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (has(v)) raw = load(p.weight + (v * kThreads + thread) * kVectorBytes);
    make_gain(raw, p.weight_offset, gain[v]);
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) dweight[v][i] = dbias[kLayer ? v : 0][i] = 0;
  }

#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    Rows next;
    load_rows(next, step + 1);
    float xhat[kUnroll][kVectors][kPerVector], e[kUnroll][kVectors][kPerVector];
    float c1[kUnroll], c2[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const bool live = row_of(step, u) < p.rows;
      float dots[kVectors], sums[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float d[kPerVector];
        unpack(now.x[u][v], xhat[u][v]);
        unpack(now.dy[u][v], d);
#pragma unroll
        for (int i = 0; i < kPerVector; ++i) {
          xhat[u][v][i] =
              normalized<kNorm>(xhat[u][v][i], kLayer ? now.mean[u] : 0.0f, now.rstd[u]);
          e[u][v][i] = __fmul_rn(d[i], gain[v][i]);
          if (live) {
            dweight[v][i] = __fmaf_rn(d[i], xhat[u][v][i], dweight[v][i]);
            if (kLayer) dbias[v][i] = __fadd_rn(dbias[v][i], d[i]);
          }
        }
        dots[v] = dot(e[u][v], xhat[u][v]);
        if (kLayer) sums[v] = sum(e[u][v]);
      }
      c1[u] = fold_registers<kVectors>(dots);
      if (kLayer) c2[u] = fold_registers<kVectors>(sums);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      c1[u] = mean_of(fold_lanes<kThreads>(c1[u]), p.inverse_n);
      if (kLayer) c2[u] = mean_of(fold_lanes<kThreads>(c2[u]), p.inverse_n);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int row = row_of(step, u);
      const int64_t offset = row * p.row_bytes + thread * kVectorBytes;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float f[kPerVector];
#pragma unroll
        for (int i = 0; i < kPerVector; ++i)
          f[i] = gradient<kNorm>(xhat[u][v][i], e[u][v][i], c1[u], c2[u], now.rstd[u]);
        if (row < p.rows && has(v)) store<false>(p.dx + offset + v * kStride, pack(f));
      }
    }
    now = next;
  }
  grid_trigger();

#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    if (s > 0) __syncthreads();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float* const to = lane_sums + lane * kWidth + (v * kThreads + thread) * kPerVector;
      const float* const f = s > 0 ? dbias[kLayer ? v : 0] : dweight[v];
#pragma unroll
      for (int i = 0; i < kPerVector; i += 4)
        *reinterpret_cast<float4*>(to + i) = make_float4(f[i], f[i + 1], f[i + 2], f[i + 3]);
    }
    __syncthreads();
    // kShare threads a column, each with kLanes / kShare lanes of the highest digits.
    constexpr int kShare = kBlockThreads > kWidth ? kBlockThreads / kWidth : 1;
    constexpr int kOwn = kLanes / kShare;
    const int column = threadIdx.x % kWidth, part = threadIdx.x / kWidth;
    float q[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) q[k] = lane_sums[(part + kShare * k) * kWidth + column];
    float folded = fold_registers<kOwn>(q);
    if constexpr (kShare > 1) {
      __syncthreads();
      lane_sums[part * kWidth + column] = folded;
      __syncthreads();
      if (part == 0) {
        float parts[kShare];
#pragma unroll
        for (int k = 0; k < kShare; ++k) parts[k] = lane_sums[k * kWidth + column];
        folded = fold_registers<kShare>(parts);
      }
    }
    if (part == 0 && column < p.n)
      __stcg(p.partials[s] + int64_t{blockIdx.x} * p.n + column, folded);
  }
}

}  // namespace lab
