// Rows of several warps: a block has `lanes` rows at once, and goes over its rows in steps.
//
// Registers: the gains, the sums of this thread's columns, and xhat and dy * gain of a step's rows.
// With rereads the weights stay as loaded, and the ring is read twice to compute the others again.
// The next rows wait as Input says. A step adds a constant to each address and asks nothing.
#pragma once

#include "bench/lab/backward/device.cuh"

namespace lab {

template <Norm kNorm, int kThreads, int kVectors, int kLanes, int kUnroll, Input kInput,
          int kStages, bool kRereads, bool kOneWarpFolds, bool kStreamingStores>
__global__ void __launch_bounds__(kThreads* kLanes, 1)
    long_rows_kernel(const __grid_constant__ Params p) {
  constexpr bool kLayer = kNorm == Norm::kLayer, kKeeps = !kRereads;
  constexpr bool kAhead = kInput == Input::kRegisters, kBulk = kInput == Input::kBulkRing;
  constexpr bool kRing = kInput == Input::kRing;
  constexpr int kBlockThreads = kThreads * kLanes, kWarps = kThreads / 32;
  constexpr int kSums = kLayer ? 2 : 1, kValues = kSums * kUnroll;
  constexpr int kStride = kThreads * kVectorBytes;  // from a vector of a thread to its next
  static_assert(kRing || kKeeps, "what is read again is in the ring");
  __shared__ float warp_sums[2][kValues][kBlockThreads];
  __shared__ float row_sums[kOneWarpFolds ? 2 : 1][kValues][kLanes];
  __shared__ __align__(8) uint64_t arrived[kBulk ? kStages : 1];

  const int thread = threadIdx.x;
  const int lane = kLanes == 1 ? 0 : thread / kThreads, of_row = thread % kThreads;
  const int warp = of_row >> 5, of_warp = of_row & 31;
  const bool last = (kVectors - 1) * kThreads + of_row < p.row_vectors;
  const auto has = [&](int v) { return v < kVectors - 1 || last; };
  const int first = blockIdx.x * kLanes;
  const int steps = (p.rows - first + p.step * kUnroll - 1) / (p.step * kUnroll);
  const uint32_t ring = shared_address(launch_shared());
  const int row_bytes = p.n * 2;
  const auto row_of = [&](int step, int u) { return first + (step * kUnroll + u) * p.step + lane; };
  const auto offset_of = [&](int row) { return row * p.row_bytes + of_row * kVectorBytes; };

  // --- the next rows ---
  // The address of a vector of tensor 0 (x) or 1 (dy).
  const auto slot = [&](int stage, int u, int tensor, int v) -> uint32_t {
    if (kBulk) {
      const int row = stage * kUnroll * kLanes + u * kLanes + lane;
      return ring + (row * 2 + tensor) * row_bytes + (v * kThreads + of_row) * kVectorBytes;
    }
    const int vector = ((stage * kUnroll + u) * 2 + tensor) * kVectors + v;
    return ring + vector * kBlockThreads * kVectorBytes + thread * kVectorBytes;
  };
  const auto copy_rows = [&](int step) {  // one thread, all rows
    if (step >= steps) return;
    const int stage = step % kStages;
    const uint32_t barrier = shared_address(&arrived[stage]);
    int rows = 0;
    for (int u = 0; u < kUnroll; ++u)
      rows += max(0, min(kLanes, p.rows - (first + (step * kUnroll + u) * p.step)));
    barrier_expect(barrier, rows * 2 * row_bytes);
    for (int k = 0; k < kUnroll * kLanes; ++k) {
      const int row = first + (step * kUnroll + k / kLanes) * p.step + k % kLanes;
      if (row >= p.rows) continue;
      const int64_t offset = row * p.row_bytes;
      const uint32_t to = ring + (stage * kUnroll * kLanes + k) * 2 * row_bytes;
      copy_bulk(to, p.x + offset, row_bytes, barrier);
      copy_bulk(to + row_bytes, p.dy + offset, row_bytes, barrier);
    }
  };
  const auto copy_own = [&](int step) {  // every thread, the vectors that it reads
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int row = row_of(step, u);
      const int64_t offset = offset_of(row);
      if (row < p.rows) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          if (has(v)) {
            copy_async(slot(step % kStages, u, 0, v), p.x + offset + v * kStride);
            copy_async(slot(step % kStages, u, 1, v), p.dy + offset + v * kStride);
          }
        }
      }
    }
    copy_commit();
  };
  struct Rows {
    uint4 x[kUnroll][kVectors], dy[kUnroll][kVectors];
  };
  const auto load_rows = [&](Rows& to, int step) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int row = row_of(step, u);
      const int64_t offset = offset_of(row);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        to.x[u][v] = to.dy[u][v] = make_uint4(0, 0, 0, 0);
        if (row < p.rows && has(v)) {
          to.x[u][v] = load(p.x + offset + v * kStride);
          to.dy[u][v] = load(p.dy + offset + v * kStride);
        }
      }
    }
  };
  float rstd[kUnroll], next_rstd[kUnroll];
  float mean[kLayer ? kUnroll : 1], next_mean[kLayer ? kUnroll : 1];
  const auto load_statistics = [&](int step) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int row = row_of(step, u);
      next_rstd[u] = 0;
      if (kLayer) next_mean[u] = 0;
      if (row < p.rows) {
        next_rstd[u] = __ldg(p.rstd + row);
        if (kLayer) next_mean[u] = __ldg(p.mean + row);
      }
    }
  };
  if constexpr (kBulk) {
    if (thread == 0) {
      for (int stage = 0; stage < kStages; ++stage) barrier_init(shared_address(&arrived[stage]));
      fence_barrier_init();
      for (int stage = 0; stage < kStages; ++stage) copy_rows(stage);
    }
  }
  if constexpr (kRing) {
    for (int stage = 0; stage < kStages - 1; ++stage) copy_own(stage);
  }
  Rows now;
  if constexpr (kAhead) load_rows(now, 0);
  load_statistics(0);

  float gain[kKeeps ? kVectors : 1][kPerVector], dweight[kVectors][kPerVector];
  float dbias[kLayer ? kVectors : 1][kPerVector];
  uint4 weight[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    weight[v] = make_uint4(0, 0, 0, 0);
    if (has(v)) weight[v] = load(p.weight + (v * kThreads + of_row) * kVectorBytes);
    if (kKeeps) make_gain(weight[v], p.weight_offset, gain[kKeeps ? v : 0]);
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) dweight[v][i] = dbias[kLayer ? v : 0][i] = 0;
  }
  const auto take_gain = [&](int v, float* f) {
    if (kKeeps) {
      for (int i = 0; i < kPerVector; ++i) f[i] = gain[kKeeps ? v : 0][i];
    } else {
      make_gain(weight[v], p.weight_offset, f);
    }
  };
  const auto sync_row = [&] {
    if constexpr (kLanes == 1 || kBulk) {
      __syncthreads();
    } else {
      sync_threads(lane + 1, kThreads);
    }
  };
  if constexpr (kBulk) __syncthreads();

    // --- the rows ---
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int parity = step & 1;
    Rows next;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      rstd[u] = next_rstd[u];
      if (kLayer) mean[u] = next_mean[u];
    }
    load_statistics(step + 1);
    if constexpr (kAhead) load_rows(next, step + 1);
    if constexpr (kBulk)
      barrier_wait(shared_address(&arrived[step % kStages]), (step / kStages) & 1);
    if constexpr (kRing) {
      copy_own(step + kStages - 1);
      copy_wait_group<kStages - 1>();
    }
    const auto take = [&](const uint4(&raw)[kUnroll][kVectors], int u, int tensor, int v,
                          bool live) {
      if constexpr (kAhead) return raw[u][v];
      uint4 found = make_uint4(0, 0, 0, 0);
      if (live && has(v)) found = load_shared(slot(step % kStages, u, tensor, v));
      return found;
    };
    // xhat and e of a vector; its share of dweight and dbias is added.
    const auto make_factors = [&](float* xhat, float* e, int u, int v, bool live, bool adds) {
      float d[kPerVector], g[kPerVector];
      unpack(take(now.x, u, 0, v, live), xhat);
      unpack(take(now.dy, u, 1, v, live), d);
      take_gain(v, g);
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) {
        xhat[i] = normalized<kNorm>(xhat[i], kLayer ? mean[u] : 0.0f, rstd[u]);
        e[i] = __fmul_rn(d[i], g[i]);
        if (adds && live) {
          dweight[v][i] = __fmaf_rn(d[i], xhat[i], dweight[v][i]);
          if (kLayer) dbias[v][i] = __fadd_rn(dbias[v][i], d[i]);
        }
      }
    };
    float kept_xhat[kKeeps ? kUnroll : 1][kKeeps ? kVectors : 1][kPerVector];
    float kept_e[kKeeps ? kUnroll : 1][kKeeps ? kVectors : 1][kPerVector];
    float q[kValues];  // [sum][row of a lane]
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const bool live = row_of(step, u) < p.rows;
      float dots[kVectors], sums[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float* const xhat = kept_xhat[kKeeps ? u : 0][kKeeps ? v : 0];
        float* const e = kept_e[kKeeps ? u : 0][kKeeps ? v : 0];
        make_factors(xhat, e, u, v, live, kKeeps);
        dots[v] = dot(e, xhat);
        if (kLayer) sums[v] = sum(e);
      }
      q[u] = fold_registers<kVectors>(dots);
      if (kLayer) q[(kLayer ? kUnroll : 0) + u] = fold_registers<kVectors>(sums);
    }

    // Warps fold first, then lanes.
#pragma unroll
    for (int k = 0; k < kValues; ++k) warp_sums[parity][k][thread] = q[k];
    sync_row();
    if constexpr (kBulk) {  // everybody has read this step's stage
      if (thread == 0) copy_rows(step + kStages);
    }
    const auto fold_row = [&](int k) {
      float warps[kWarps];
#pragma unroll
      for (int j = 0; j < kWarps; ++j)
        warps[j] = warp_sums[parity][k][lane * kThreads + j * 32 + of_warp];
      return fold_lanes<32>(fold_registers<kWarps>(warps));
    };
    if constexpr (kOneWarpFolds) {
      for (int k = warp; k < kValues; k += kWarps) {
        const float folded = fold_row(k);
        if (of_warp == 0) row_sums[parity][k][lane] = folded;
      }
      sync_row();
#pragma unroll
      for (int k = 0; k < kValues; ++k) q[k] = row_sums[parity][k][lane];
    } else {
#pragma unroll
      for (int k = 0; k < kValues; ++k) q[k] = fold_row(k);
    }
#pragma unroll
    for (int k = 0; k < kValues; ++k) q[k] = mean_of(q[k], p.inverse_n);

#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int row = row_of(step, u);
      const bool live = row < p.rows;
      const int64_t offset = offset_of(row);
      const float c1 = q[u], c2 = kLayer ? q[(kLayer ? kUnroll : 0) + u] : 0.0f;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float f[kPerVector];
        float* const xhat = kept_xhat[kKeeps ? u : 0][kKeeps ? v : 0];
        float* const e = kept_e[kKeeps ? u : 0][kKeeps ? v : 0];
        if constexpr (kRereads) make_factors(xhat, e, u, v, live, true);
#pragma unroll
        for (int i = 0; i < kPerVector; ++i) f[i] = gradient<kNorm>(xhat[i], e[i], c1, c2, rstd[u]);
        if (live && has(v)) store<kStreamingStores>(p.dx + offset + v * kStride, pack(f));
      }
    }
    if constexpr (kAhead) now = next;
  }
  if constexpr (kRing) copy_wait();
  grid_trigger();

  // --- the sums of this block ---
  auto* const lane_sums = reinterpret_cast<float*>(launch_shared());  // [lane][column]
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    float* const to = p.partials[s] + int64_t{blockIdx.x} * p.n;
    if constexpr (kLanes > 1) __syncthreads();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (has(v)) {
        const float* const f = s > 0 ? dbias[kLayer ? v : 0] : dweight[v];
        const int column = (v * kThreads + of_row) * kPerVector;
#pragma unroll
        for (int i = 0; i < kPerVector; i += 4) {
          if constexpr (kLanes == 1) {
            store_floats(to + column + i, f + i);
          } else {
            *reinterpret_cast<float4*>(lane_sums + lane * p.n + column + i) =
                make_float4(f[i], f[i + 1], f[i + 2], f[i + 3]);
          }
        }
      }
    }
    if constexpr (kLanes > 1) {
      __syncthreads();
      for (int k = thread; k < p.n / 4; k += kBlockThreads) {
        float4 lanes[kLanes];
#pragma unroll
        for (int j = 0; j < kLanes; ++j)
          lanes[j] = *reinterpret_cast<const float4*>(lane_sums + j * p.n + k * 4);
        *reinterpret_cast<float4*>(to + k * 4) = fold_registers<kLanes>(lanes);
      }
    }
  }
}

}  // namespace lab
