// Many aligned rows: a block (or cluster) is one block of the row order, and goes over its rows.
//
// Registers: the sums of this thread's columns, its gains (weight + offset), and the current rows'
// xhat and dy * gain. Meanwhile the next rows are loaded into registers, or into a ring in shared
// memory. A thread reads from the ring only what it copied itself, so no barrier is needed.
//
// The gradient of a gate after the norm is stored before the row's sums are folded: it needs none.
// A gate before the norm keeps its function's values and slopes in shared memory until the sums are
// known. A branch has factors and sums of columns of its own. If it has a norm, it has a row's sum,
// too. Its xhat and gradient then take the places of x's.
//
// Bytes: each row of an input once, each of an output once. The sums of each block once; fold.cuh
// reads them.
#pragma once

#include "cuda/common/ptx/store_shared.cuh"
#include "cuda/norm_backward/branch.cuh"
#include "cuda/norm_backward/general.cuh"
#include "cuda/norm_backward/held.cuh"

namespace fastnorm::cuda {

// A ring of rows in shared memory: [stage][row of a lane][tensor][vector][thread].
template <class S>
struct RowRing {
  static constexpr int kStages = S::kV.stages;
  static constexpr int kVectorStep = S::kBlockThreads * kVectorBytes;

  __device__ __forceinline__ RowRing() : data(ptx::launch_shared() + threadIdx.x * kVectorBytes) {}

  __device__ __forceinline__ char* slot(int stage, int row, int tensor, int v) const {
    return data +
           (((stage * S::kUnroll + row) * S::kTensors + tensor) * S::kVectors + v) * kVectorStep;
  }
  __device__ __forceinline__ void copy(int stage, int row, const NormBackwardParams& p,
                                       const RowAddresses<S>& from, bool live,
                                       const LanePlace<S>& place) const {
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      const bool wanted = live && place.has(v);
#pragma unroll
      for (int t = 0; t < S::kTensors; ++t) {
        ptx::copy_async_past_l1_if(slot(stage, row, t, v), from.of[t] + from.step(v),
                                   wanted && is_there<S>(p, t));
      }
    }
  }
  __device__ __forceinline__ uint4 take(int stage, int row, int tensor, int v, bool there) const {
    return there ? ptx::ld_shared_v4(slot(stage, row, tensor, v)) : make_uint4(0, 0, 0, 0);
  }

  char* const data;
};

// What a gate before the norm keeps of a step, behind the ring: [row of a lane][vector][part]
// [thread]. Each thread reads its own values alone.
template <class S>
struct KeptGate {
  static constexpr int kPerPart = kVectorBytes / static_cast<int>(sizeof(float));
  static constexpr int kPartsOfOne = S::kPerVector / kPerPart, kParts = 2 * kPartsOfOne;
  static constexpr int kRingSlots =
      S::kV.has_ring() ? S::kV.stages * S::kUnroll * S::kTensors * S::kVectors : 0;

  __device__ __forceinline__ KeptGate() : data(ptx::launch_shared() + threadIdx.x * kVectorBytes) {}

  __device__ __forceinline__ char* slot(int row, int v, int part) const {
    const int number = kRingSlots + (row * S::kVectors + v) * kParts + part;
    return data + number * S::kBlockThreads * kVectorBytes;
  }
  __device__ __forceinline__ void put(int row, int v, const float (&factor)[S::kPerVector],
                                      const float (&slope)[S::kPerVector]) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float* const f =
          part < kPartsOfOne ? &factor[part * kPerPart] : &slope[(part - kPartsOfOne) * kPerPart];
      ptx::st_shared_v4(slot(row, v, part),
                        make_uint4(__float_as_uint(f[0]), __float_as_uint(f[1]),
                                   __float_as_uint(f[2]), __float_as_uint(f[3])));
    }
  }
  __device__ __forceinline__ void take(int row, int v, float (&factor)[S::kPerVector],
                                       float (&slope)[S::kPerVector]) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float* const f =
          part < kPartsOfOne ? &factor[part * kPerPart] : &slope[(part - kPartsOfOne) * kPerPart];
      const uint4 raw = ptx::ld_shared_v4(slot(row, v, part));
      f[0] = __uint_as_float(raw.x), f[1] = __uint_as_float(raw.y);
      f[2] = __uint_as_float(raw.z), f[3] = __uint_as_float(raw.w);
    }
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

// kBefore: the gate is before the norm.
template <class S, bool kBefore = false>
__device__ __forceinline__ void gradient_in_turn(const NormBackwardParams& p) {
  constexpr int kVectors = S::kVectors, kPerVector = S::kPerVector, kUnroll = S::kUnroll;
  constexpr int kStages = S::kV.stages, kValues = S::kSums * kUnroll;
  constexpr bool kRing = S::kV.has_ring(), kAhead = kStages == 1, kRereads = S::kV.rereads;
  constexpr int kVectorStep = S::kStride * kVectorBytes;  // from a vector of a thread to its next
  static_assert(kRing || !kRereads);
  constexpr bool kBranch = S::kBranch, kBranchNorm = S::kBranchNorm;
  static_assert((!S::kGate && !kBranch) || !kRereads);
  static_assert(S::kGate || !kBefore);
  static_assert(!kBranchNorm || S::kStat == Stat::kRms);
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
    const uint32_t there = is_live(row) ? row : 0;
    return RowAddresses<S>(p, {group_row + there, group, there}, place.offset());
  };
  ptx::grid_wait();

  const RowRing<S> ring;
  const KeptGate<S> kept;
  const auto copy = [&](uint32_t step) {
    if constexpr (kRing) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const uint32_t row = row_of(step, u);
        ring.copy(static_cast<int>(step % kStages), u, p, addresses(row), is_live(row), place);
      }
      ptx::copy_async_commit();
    }
  };
  RawRow<S> raw[kUnroll], raw_next[kAhead ? kUnroll : 1];
  Statistics now[kUnroll], next[kUnroll];
  float branch_rstd[kBranchNorm ? kUnroll : 1], next_branch_rstd[kBranchNorm ? kUnroll : 1];
  // Statistics of a step's rows into `next`, and if `to` is wanted the rows.
  const auto load = [&](RawRow<S>* to, uint32_t step) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t row = row_of(step, u);
      const RowAddresses<S> from = addresses(row);
      next[u] = {0.0f, 0.0f};
      if (is_live(row)) next[u] = load_statistics(from);
      if constexpr (kBranchNorm)
        next_branch_rstd[u] = is_live(row) ? ptx::ld_global_f32(from.branch_rstd) : 0.0f;
      if (to != nullptr) load_raw(to[u], p, from, is_live(row), place);
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
  // The gain of the branch's norm, or what the residual gate multiplies by.
  float branch_factor[kBranch ? kVectors : 1][kPerVector], sum_scale = 1.0f;
  if constexpr (kBranch) {
    if (p.branch.sum_scale != nullptr) sum_scale = ptx::ld_global_f32(p.branch.sum_scale);
    const BranchRow of(p, backward_index(p, group_row));
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t element = int64_t{place.vector(v)} * kPerVector;
      const int count = place.has(v) ? kPerVector : 0;
      if constexpr (kBranchNorm) {
        of.take_gain(branch_factor[v], element, count);
      } else {
#pragma unroll
        for (float& factor : branch_factor[v]) factor = 1.0f;
        of.multiply_by_gate(branch_factor[v], element, count);
      }
    }
  }
  float of_branch[kBranch ? kVectors : 1][kPerVector] = {};  // dbranch_weight or dresidual_gate
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
    for (int u = 0; u < kUnroll; ++u) {
      now[u] = next[u];
      if constexpr (kBranchNorm) branch_rstd[u] = next_branch_rstd[u];
    }
    if constexpr (kAhead || kRing) load(kAhead ? raw_next : nullptr, step + 1);
    if constexpr (kRing) {
      copy(step + kStages - 1);
      ptx::copy_async_wait_group<kStages - 1>();
    }
    float x[kRereads ? 1 : kUnroll][kRereads ? 1 : kVectors][kPerVector],
        e[kRereads ? 1 : kUnroll][kRereads ? 1 : kVectors][kPerVector], q[kValues];
    const auto take = [&](int u, RowInput tensor, int v, bool there) {
      return kRing ? ring.take(stage, u, tensor, v, there) : raw[u].of[tensor][v];
    };
    // x, e and d of vector v of row u. With kRereads they are computed twice.
    const auto factors = [&](float(&x_of)[kPerVector], float(&e_of)[kPerVector],
                             float(&d)[kPerVector], int u, int v, bool there) {
      float g[kPerVector];
      take_gain(g, v);
      const uint4 x_raw = take(u, kRowX, v, there), dy_raw = take(u, kRowDy, v, there);
      uint4 gate_raw = make_uint4(0, 0, 0, 0);
      if constexpr (S::kGate) gate_raw = take(u, kRowGate, v, there);
      if constexpr (kBefore) {
        make_factors_of_gated<S>(
            x_of, e_of, d, x_raw, dy_raw, gate_raw, g, now[u], p,
            [&](const float(&factor)[kPerVector], const float(&slope)[kPerVector]) {
              kept.put(u, v, factor, slope);
            });
      } else {
        make_factors<S>(
            x_of, e_of, d, x_raw, dy_raw, gate_raw, g, now[u], p, [&](const uint4& dgate) {
              if (there && p.dgate.data != nullptr)
                ptx::st_global_v4(addresses(row_of(step, u)).other + v * kVectorStep, dgate);
            });
      }
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
        if constexpr (kRing && S::kResidual && !kRereads && !kBranch)
          raw[u].of[kRowAdd][v] = take(u, kRowAdd, v, live && place.has(v));
        if (!kRereads && live) add_row<S>(dweight[v], dbias[S::kSums > 1 ? v : 0], d, x_of, p);
        vector_sums<S>(sums, v, x_of, e_of, place.has(v));
      }
#pragma unroll
      for (int k = 0; k < S::kSums; ++k) q[u * S::kSums + k] = fold_registers(sums[k]);
    }
    // With a branch's norm a step has two folds, so each takes the same set again.
    fold_step_of_rows<S>(q, scratch, kBranchNorm ? 0 : static_cast<int>(step & 1),
                         static_cast<int>(kBranchNorm ? step : step >> 1), place);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t row = row_of(step, u);
      const bool live = is_live(row);
      float c[S::kSums];
#pragma unroll
      for (int k = 0; k < S::kSums; ++k) c[k] = mean_of_sum(q[u * S::kSums + k], p);
      const RowAddresses<S> to = addresses(row);
      float branch_sums[S::kSums][kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const bool there = live && place.has(v);
        float(&x_of)[kPerVector] = x[kRereads ? 0 : u][kRereads ? 0 : v];
        float(&e_of)[kPerVector] = e[kRereads ? 0 : u][kRereads ? 0 : v];
        uint4 add = make_uint4(0, 0, 0, 0);
        if constexpr (kRereads) {
          float d[kPerVector];
          factors(x_of, e_of, d, u, v, there);
          if (live) add_row<S>(dweight[v], dbias[S::kSums > 1 ? v : 0], d, x_of, p);
          if constexpr (S::kResidual) add = take(u, kRowAdd, v, there);
        } else if constexpr (kBranch) {
          add = take(u, kRowAdd, v, there);
        } else if constexpr (S::kResidual) {
          add = raw[u].of[kRowAdd][v];
        }
        float f[kPerVector], factor[kPerVector], of_gate[kPerVector];
        if constexpr (kBefore) {
          // x again, from what was loaded: to hold it in registers takes more of them.
          kept.take(u, v, factor, of_gate);
          S::T::unpack(take(u, kRowX, v, there), x_of);
          normalize_gated<S>(x_of, factor, now[u], p);
        }
        gradient_vector<S>(f, x_of, e_of, add, c, now[u].rstd, is_there<S>(p, kRowAdd));
        if constexpr (kBefore) {
          float loaded[kPerVector];
          S::T::unpack(take(u, kRowX, v, there), loaded);
          multiply(loaded, f);
          multiply(of_gate, loaded);
          multiply(f, factor);
          if (there && p.dgate.data != nullptr)
            ptx::st_global_v4(to.other + v * kVectorStep, S::T::pack(of_gate));
        }
        if constexpr (kBranch) {
#pragma unroll
          for (float& value : f) value = __fmul_rn(value, sum_scale);
        }
        const uint4 result = S::T::pack(f);
        if (there) ptx::st_global_v4(to.dx + v * kVectorStep, result);
        if constexpr (kBranchNorm) {
          // From here on x and e are the branch's.
          make_branch_factors<S>(x_of, e_of, f, take(u, kRowBranch, v, there), branch_factor[v],
                                 branch_rstd[u], p, [&](const float(&d)[kPerVector]) {
                                   if (live) {
                                     add_row<S>(of_branch[v], dbias[0], d, x_of, p,
                                                kBackwardBranchRoundNormalized);
                                   }
                                 });
          vector_sums<S>(branch_sums, v, x_of, e_of, place.has(v));
        } else if constexpr (kBranch) {
          float u_of[kPerVector];
          S::T::unpack(take(u, kRowBranch, v, there), u_of);
#pragma unroll
          for (int i = 0; i < kPerVector; ++i) {
            if (live) of_branch[v][i] = __fmaf_rn(f[i], u_of[i], of_branch[v][i]);
            f[i] = __fmul_rn(f[i], branch_factor[v][i]);
          }
          const uint4 dbranch = S::T::pack(f);
          if (there) ptx::st_global_v4(to.other + v * kVectorStep, dbranch);
        }
      }
      if constexpr (kBranchNorm) q[u] = fold_registers(branch_sums[0]);
    }
    if constexpr (kBranchNorm) {
      fold_step_of_rows<S>(q, scratch, 1, static_cast<int>(step), place);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const uint32_t row = row_of(step, u);
        char* const to = addresses(row).other;
        const float c[1] = {mean_of_sum(q[u], p)};
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          float f[kPerVector];
#pragma unroll
          for (int i = 0; i < kPerVector; ++i)
            f[i] = __fmul_rn(centred<Stat::kRms>(x[u][v][i], e[u][v][i], c), branch_rstd[u]);
          if (is_live(row) && place.has(v)) ptx::st_global_v4(to + v * kVectorStep, S::T::pack(f));
        }
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
  if constexpr (kBranch) {
    const BackwardTensor& out = kBranchNorm ? p.branch.dweight : p.branch.dresidual_gate;
    if (out.data != nullptr)
      store_partial<S>(p.partial[kBranchNorm ? 2 : 4] + partial_row, of_branch, place);
  }
  // A block must not exit while other blocks still write to its shared memory.
  if constexpr (S::kCluster) {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }
}

}  // namespace fastnorm::cuda
