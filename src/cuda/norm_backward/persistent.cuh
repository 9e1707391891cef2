// Many aligned rows: a block (or cluster) is one block of the row order, and goes over its rows.
//
// Registers: the sums of this thread's columns, its gains (weight + offset), and the current rows'
// xhat and dy * gain. dgate is stored before a row's sums are folded: it needs none. Meanwhile the next rows are loaded into registers, or into a ring in shared
// memory. A thread reads from the ring only what it copied itself, so no barrier is needed.
// Bytes: x, dy, and dresidual_in or the gate once, dx and dgate once. The sums of each block once; fold.cuh reads them.
#pragma once

#include "cuda/norm_backward/general.cuh"
#include "cuda/norm_backward/held.cuh"

namespace fastnorm::cuda {

// A ring of rows in shared memory: [stage][row of a lane][tensor][vector][thread].
template <class S>
struct RowRing {
  static constexpr int kStages = S::kV.stages, kTensors = S::kThird ? 3 : 2;
  static constexpr int kVectorStep = S::kBlockThreads * kVectorBytes;

  __device__ __forceinline__ RowRing() : data(ptx::launch_shared() + threadIdx.x * kVectorBytes) {}

  __device__ __forceinline__ char* slot(int stage, int row, int tensor, int v) const {
    return data +
           (((stage * S::kUnroll + row) * kTensors + tensor) * S::kVectors + v) * kVectorStep;
  }
  __device__ __forceinline__ void copy(int stage, int row, const RowAddresses<S>& from, bool live,
                                       const LanePlace<S>& place) const {
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      const bool wanted = live && place.has(v);
      ptx::copy_async_past_l1_if(slot(stage, row, 0, v), from.x + from.step(v), wanted);
      ptx::copy_async_past_l1_if(slot(stage, row, 1, v), from.dy + from.step(v), wanted);
      if constexpr (S::kThird)
        ptx::copy_async_past_l1_if(slot(stage, row, 2, v), from.third + from.step(v), wanted);
    }
  }
  __device__ __forceinline__ uint4 take(int stage, int row, int tensor, int v, bool there) const {
    return there ? ptx::ld_shared_v4(slot(stage, row, tensor, v)) : make_uint4(0, 0, 0, 0);
  }

  char* const data;
};

// The sums of a block to memory.
template <class S>
__device__ __forceinline__ void store_partial(float* to,
                                              const float (&sums)[S::kVectors][S::kPerVector],
                                              const LanePlace<S>& place) {
  const auto put = [](float* address, const float* f) {
    ptx::st_global_v4(address, make_uint4(__float_as_uint(f[0]), __float_as_uint(f[1]),
                                          __float_as_uint(f[2]), __float_as_uint(f[3])));
  };
  if constexpr (S::kLanes == 1) {
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < S::kPerVector; i += 4) {
        if (place.has(v)) put(to + place.vector(v) * S::kPerVector + i, &sums[v][i]);
      }
    }
  } else {
    constexpr int kWidth = S::kThreads * S::kVectors * S::kPerVector;
    auto* const values = reinterpret_cast<float*>(ptx::launch_shared());
    __syncthreads();  // the ring, or the other sums, have been read
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < S::kPerVector; ++i)
        values[place.row_lane * kWidth + place.vector(v) * S::kPerVector + i] = sums[v][i];
    }
    __syncthreads();
    fold_lanes_in_shared<S::kBlockThreads>(values, S::kLanes, kWidth);
    if (place.row_lane == 0) {
#pragma unroll
      for (int v = 0; v < S::kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < S::kPerVector; i += 4) {
          const int column = place.vector(v) * S::kPerVector + i;
          if (place.has(v)) put(to + column, values + column);
        }
      }
    }
  }
}

template <class S>
__device__ __forceinline__ void gradient_in_turn(const NormBackwardParams& p) {
  constexpr int kVectors = S::kVectors, kPerVector = S::kPerVector, kUnroll = S::kUnroll;
  constexpr int kStages = S::kV.stages, kValues = S::kSums * kUnroll;
  constexpr bool kRing = S::kV.has_ring(), kAhead = kStages == 1, kRereads = S::kV.rereads;
  constexpr int kVectorStep = S::kStride * kVectorBytes;  // from a vector of a thread to its next
  static_assert(kRing || !kRereads);
  static_assert(!S::kGate || !kRereads);
  auto& scratch = ptx::block_shared<StepScratch<S, kValues, 2>>();
  begin_steps(scratch);
  const LanePlace<S> place(p);
  const uint32_t block = blockIdx.x / S::kBlocks, group = blockIdx.y;
  const uint32_t first_row = block * p.lanes, group_row = group * p.shared_rows;
  const uint32_t steps = (p.shared_rows - first_row + p.step * kUnroll - 1) / (p.step * kUnroll);
  const auto row_of = [&](uint32_t step, int u) {
    return first_row + place.row_lane + (step * kUnroll + u) * p.step;
  };
  const auto is_live = [&](uint32_t row) { return row < p.shared_rows; };
  // Rows past the end have the addresses of the group's first row.
  const auto addresses = [&](uint32_t row) {
    return RowAddresses<S>(p, group_row + (is_live(row) ? row : 0), place.offset());
  };
  ptx::grid_wait();

  const RowRing<S> ring;
  const auto copy = [&](uint32_t step) {
    if constexpr (kRing) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const uint32_t row = row_of(step, u);
        ring.copy(static_cast<int>(step % kStages), u, addresses(row), is_live(row), place);
      }
      ptx::copy_async_commit();
    }
  };
  RawRow<S> raw[kUnroll], raw_next[kAhead ? kUnroll : 1];
  Statistics now[kUnroll], next[kUnroll];
  // Statistics of a step's rows into `next`, and if `to` is wanted the rows.
  const auto load = [&](RawRow<S>* to, uint32_t step) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t row = row_of(step, u);
      const RowAddresses<S> from = addresses(row);
      next[u] = {0.0f, 0.0f};
      if (is_live(row)) next[u] = load_statistics(from);
      if (to != nullptr) load_raw(to[u], from, is_live(row), place);
    }
  };
  if constexpr (kRing) {
#pragma unroll
    for (uint32_t step = 0; step + 1 < kStages; ++step) copy(step);
  }
  load(kRing ? nullptr : raw, 0);

  float gain[kRereads ? 1 : kVectors][kPerVector];
  uint4 raw_weight[kRereads ? kVectors : 1];
  if constexpr (kRereads) {
    // Of x's dtype, or absent.
    const char* const weight =
        p.weight.data == nullptr ? nullptr : group_address(p, p.weight, group);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      constexpr uint32_t kOne = S::T::kOneWord;
      raw_weight[v] = make_uint4(kOne, kOne, kOne, kOne);
      ptx::ld_global_v4_if(raw_weight[v], weight + int64_t{place.vector(v)} * kVectorBytes,
                           weight != nullptr && place.has(v));
    }
  } else {
    load_gains<S>(gain, p, group, place);
  }
  const auto take_gain = [&](float(&g)[kPerVector], int v) {
    if constexpr (kRereads) {
      S::T::unpack(raw_weight[v], g);
#pragma unroll
      for (float& value : g) value = gain_of(value, p);
    } else {
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) g[i] = gain[v][i];
    }
  };
  float dweight[kVectors][kPerVector], dbias[S::kSums > 1 ? kVectors : 1][kPerVector];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) dweight[v][i] = dbias[S::kSums > 1 ? v : 0][i] = 0.0f;
  }

#pragma unroll 1
  for (uint32_t step = 0; step < steps; ++step) {
    const int stage = static_cast<int>(step % (kRing ? kStages : 1));
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) now[u] = next[u];
    if constexpr (kAhead || kRing) load(kAhead ? raw_next : nullptr, step + 1);
    if constexpr (kRing) {
      copy(step + kStages - 1);
      ptx::copy_async_wait_group<kStages - 1>();
    }
    float x[kRereads ? 1 : kUnroll][kRereads ? 1 : kVectors][kPerVector],
        e[kRereads ? 1 : kUnroll][kRereads ? 1 : kVectors][kPerVector], q[kValues];
    // x, e and d of vector v of row u. With kRereads they are computed twice.
    const auto factors = [&](float(&x_of)[kPerVector], float(&e_of)[kPerVector],
                             float(&d)[kPerVector], int u, int v, bool there) {
      float g[kPerVector];
      take_gain(g, v);
      const uint4 x_raw = kRing ? ring.take(stage, u, 0, v, there) : raw[u].x[v],
                  dy_raw = kRing ? ring.take(stage, u, 1, v, there) : raw[u].dy[v];
      uint4 gate_raw = make_uint4(0, 0, 0, 0);
      if constexpr (S::kGate) gate_raw = kRing ? ring.take(stage, u, 2, v, there) : raw[u].third[v];
      make_factors<S>(x_of, e_of, d, x_raw, dy_raw, gate_raw, g, now[u], p,
                      [&](const uint4& dgate) {
                        if (there && p.dgate.data != nullptr)
                          ptx::st_global_v4(addresses(row_of(step, u)).dgate + v * kVectorStep, dgate);
                      });
    };
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const bool live = is_live(row_of(step, u));
      float sums[S::kSums][kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float d[kPerVector];
        float(&x_of)[kPerVector] = x[kRereads ? 0 : u][kRereads ? 0 : v];
        float(&e_of)[kPerVector] = e[kRereads ? 0 : u][kRereads ? 0 : v];
        factors(x_of, e_of, d, u, v, live && place.has(v));
        if constexpr (kRing && S::kResidual && !kRereads)
          raw[u].third[v] = ring.take(stage, u, 2, v, live && place.has(v));
        if (!kRereads && live) add_row<S>(dweight[v], dbias[S::kSums > 1 ? v : 0], d, x_of, p);
        vector_sums<S>(sums, v, x_of, e_of, place.has(v));
      }
#pragma unroll
      for (int k = 0; k < S::kSums; ++k) q[u * S::kSums + k] = fold_registers(sums[k]);
    }
    fold_step_of_rows<S>(q, scratch, static_cast<int>(step & 1), static_cast<int>(step >> 1),
                         place);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t row = row_of(step, u);
      const bool live = is_live(row);
      float c[S::kSums];
#pragma unroll
      for (int k = 0; k < S::kSums; ++k) c[k] = mean_of_sum(q[u * S::kSums + k], p);
      char* const to = addresses(row).dx;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const bool there = live && place.has(v);
        uint4 add = make_uint4(0, 0, 0, 0);
        if constexpr (kRereads) {
          float d[kPerVector];
          factors(x[0][0], e[0][0], d, u, v, there);
          if (live) add_row<S>(dweight[v], dbias[S::kSums > 1 ? v : 0], d, x[0][0], p);
          if constexpr (S::kResidual) add = ring.take(stage, u, 2, v, there);
        } else if constexpr (S::kResidual) {
          add = raw[u].third[v];
        }
        const uint4 result =
            gradient_vector<S>(x[kRereads ? 0 : u][kRereads ? 0 : v],
                               e[kRereads ? 0 : u][kRereads ? 0 : v], add, c, now[u].rstd);
        if (there) ptx::st_global_v4(to + v * kVectorStep, result);
      }
    }
    if constexpr (kAhead) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) raw[u] = raw_next[u];
    } else if constexpr (!kRing) {
      load(raw, step + 1);
    }
  }
  if constexpr (kRing) ptx::copy_async_wait();
  if ((p.bits & kBackwardTrigger) != 0) ptx::grid_trigger();

  const int64_t partial_row = (int64_t{group} * p.blocks + block) * p.partial_stride;
  if (p.dweight.data != nullptr) store_partial<S>(p.partial[0] + partial_row, dweight, place);
  if constexpr (S::kSums > 1) {
    if (p.dbias.data != nullptr) store_partial<S>(p.partial[1] + partial_row, dbias, place);
  }
  // A block must not exit while other blocks still write to its shared memory.
  if constexpr (S::kCluster) {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }
}

}  // namespace fastnorm::cuda
