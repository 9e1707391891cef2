// Shared by the forms that hold rows in registers: a thread's place, a row's vectors, and the sums
// of a step.
#pragma once

#include "cuda/common/activation.cuh"
#include "cuda/common/ptx/grid.cuh"
#include "cuda/common/ptx/shared.cuh"
#include "cuda/norm_backward/arithmetic.cuh"
#include "cuda/norm_backward/rows.cuh"

namespace fastnorm::cuda {

// What a kernel knows while it is compiled.
template <uint64_t kWord>
struct BackwardSlots {
  static constexpr NormBackwardVariant kV = backward_variant_of(kWord);
  static constexpr Stat kStat = kV.stat;
  using T = Element<kV.dtype>;
  static constexpr int kPerVector = T::kPerVector, kSums = kGradientSums<kStat>;
  static constexpr int kThreads = kV.threads, kVectors = kV.vectors, kBlocks = kV.blocks;
  static constexpr int kLanes = kV.lanes, kUnroll = kV.unroll;
  static constexpr int kBlockThreads = kV.block_threads();
  static constexpr bool kOneWarp = kV.is_one_warp(), kCluster = kV.is_cluster();
  static constexpr int kWarps = kOneWarp ? 1 : kThreads / 32;  // of a row in its block
  static constexpr int kStride = kThreads * kBlocks;  // vectors of a thread lie so far apart
  static constexpr bool kGate = kV.input == BackwardInput::kGated, kBranch = kV.has_branch();
  static constexpr bool kBranchNorm = kV.input == BackwardInput::kBranch;
  // Of a branch it may be absent.
  static constexpr bool kResidual = kV.input == BackwardInput::kAdd || kBranch;
  // Tensors of rows that are read: x, dy, then dresidual_in or the gate, then the branch.
  static constexpr int kTensors = kV.row_inputs();
  static_assert(kLanes == 1 || !kCluster);
};

// Where a thread is among those of its row.
template <class S>
struct LanePlace {
  __device__ __forceinline__ explicit LanePlace(const NormBackwardParams& p) {
    const auto number = static_cast<int>(threadIdx.x);
    row_lane = S::kLanes == 1 ? 0 : number / S::kThreads;
    const int thread = S::kLanes == 1 ? number : number % S::kThreads;
    warp = S::kOneWarp ? 0 : thread / 32;
    lane = thread % 32;
    block = S::kCluster ? static_cast<int>(ptx::cluster_block_rank()) : 0;
    first = S::kCluster ? (warp * S::kBlocks + block) * 32 + lane : thread;
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) in_row[v] = vector(v) < p.vectors;
  }
  __device__ __forceinline__ int vector(int v) const { return first + v * S::kStride; }
  __device__ __forceinline__ bool has(int v) const { return in_row[v]; }
  __device__ __forceinline__ int64_t offset() const { return first * kVectorBytes; }

  int row_lane, warp, lane, block, first;
  bool in_row[S::kVectors];
};

// Sums of a step: kValues of each row that a block has at once. Two sets take turns, so that a step
// needs no barrier after the last read of its set.
template <class S, int kValues, int kSets>
struct StepScratch {
  float values[kSets][kValues][S::kOneWarp ? 1 : S::kBlockThreads];
  float totals[kSets][kValues][S::kLanes];
  float exchange[kSets][kValues][S::kCluster ? S::kBlocks : 1][S::kCluster ? 32 : 1];
  alignas(8) uint64_t barrier[kSets];
};

template <class S, int kValues, int kSets>
__device__ __forceinline__ void expect_step(StepScratch<S, kValues, kSets>& scratch, int set) {
  constexpr int kBytes = kValues * S::kBlocks * 32 * static_cast<int>(sizeof(float));
  ptx::mbarrier_arrive_expect(ptx::shared_address(&scratch.barrier[set]), kBytes);
}

template <class S, int kValues, int kSets>
__device__ __forceinline__ void begin_steps(StepScratch<S, kValues, kSets>& scratch) {
  if constexpr (S::kCluster) {
    if (threadIdx.x == 0) {
      for (uint64_t& barrier : scratch.barrier)
        ptx::mbarrier_init(ptx::shared_address(&barrier), 1);
      ptx::fence_mbarrier_init();
      for (int set = 0; set < kSets; ++set) expect_step(scratch, set);
    }
    __syncwarp();
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }
}

template <class S>
__device__ __forceinline__ void sync_lane(const LanePlace<S>& place) {
  if constexpr (S::kLanes == 1) {
    __syncthreads();
  } else {
    ptx::sync_threads<S::kThreads>(place.row_lane + 1);
  }
}

// The sums of rows, in every thread of them, from each thread's fold of its registers. Registers,
// warps, blocks of the cluster, lanes. `use` counts how often the set was used before.
template <class S, int kValues, int kSets>
__device__ __forceinline__ void fold_step_of_rows(float (&q)[kValues],
                                                  StepScratch<S, kValues, kSets>& scratch, int set,
                                                  int use, const LanePlace<S>& place) {
  if constexpr (S::kOneWarp) {
#pragma unroll
    for (float& value : q) value = fold_lanes<S::kThreads>(value);
    return;
  }
  auto& values = scratch.values[set];
#pragma unroll
  for (int k = 0; k < kValues; ++k) values[k][threadIdx.x] = q[k];
  sync_lane(place);
  const auto fold_warps_of = [&](int k) {
    float w[S::kWarps];
#pragma unroll
    for (int i = 0; i < S::kWarps; ++i)
      w[i] = values[k][place.row_lane * S::kThreads + i * 32 + place.lane];
    return fold_registers(w);
  };
  if constexpr (S::kCluster) {
    const uint32_t barrier = ptx::shared_address(&scratch.barrier[set]);
    for (int i = place.warp; i < kValues * S::kBlocks; i += S::kWarps) {
      const int k = i / S::kBlocks, target = i % S::kBlocks;
      const uint32_t slot = ptx::shared_address(&scratch.exchange[set][k][place.block][place.lane]);
      ptx::st_async(ptx::map_to_block(slot, target), fold_warps_of(k),
                    ptx::map_to_block(barrier, target));
    }
    ptx::mbarrier_wait(barrier, use & 1);
    // For the set's next use: nobody pushes to it before this block has pushed the next step's.
    if (threadIdx.x == 0) expect_step(scratch, set);
#pragma unroll
    for (int k = 0; k < kValues; ++k) {
      float b[S::kBlocks];
#pragma unroll
      for (int i = 0; i < S::kBlocks; ++i) b[i] = scratch.exchange[set][k][i][place.lane];
      q[k] = fold_lanes<32>(fold_registers(b));
    }
  } else if constexpr (S::kV.one_warp_folds) {
#pragma unroll
    for (int k = 0; k < kValues; k += S::kWarps) {
      const int mine = k + place.warp;
      if (mine < kValues) {
        const float total = fold_lanes<32>(fold_warps_of(mine));
        if (place.lane == 0) scratch.totals[set][mine][place.row_lane] = total;
      }
    }
    sync_lane(place);
#pragma unroll
    for (int k = 0; k < kValues; ++k) q[k] = scratch.totals[set][k][place.row_lane];
  } else {
#pragma unroll
    for (int k = 0; k < kValues; ++k) q[k] = fold_lanes<32>(fold_warps_of(k));
  }
}

// The tensors of rows, in the order in which RawRow and the ring have them. kAdd: dresidual_in.
enum RowInput { kRowX, kRowDy, kRowAdd, kRowBranch, kRowGate = kRowAdd };

// This thread's vectors of a row as they were loaded.
template <class S>
struct RawRow {
  uint4 of[S::kTensors][S::kVectors];
};

// A row by its number among all rows, and among those of its group.
struct RowOfGroup {
  uint32_t number, group, row;
};

// Addresses of the vector at `offset` bytes of a row, and of the row's statistics. Rows of
// narrow strides cost one product each; a test for all tensors keeps the other case out of their
// way. Where there is a gate, groups may have a stride of their own, whose product is the same for
// all rows of a thread.
template <class S>
struct RowAddresses {
  __device__ __forceinline__ RowAddresses(const NormBackwardParams& p, const RowOfGroup& at,
                                          int64_t offset) {
    const auto set_all = [&](auto address) {
      of[kRowX] = address(p.x) + offset, of[kRowDy] = address(p.dy) + offset;
      dx = address(p.dx) + offset;
      if constexpr (S::kResidual) of[kRowAdd] = address(p.dresidual_in) + offset;
      if constexpr (S::kGate)
        of[kRowGate] = address(p.gate) + offset, other = address(p.dgate) + offset;
      if constexpr (S::kBranch) {
        of[kRowBranch] = address(p.branch.branch) + offset;
        other = address(p.branch.dbranch) + offset;
      }
      if constexpr (S::kBranchNorm) branch_rstd = address(p.branch.rstd);
      rstd = address(p.rstd);
      if constexpr (S::kStat == Stat::kLayer) mean = address(p.mean);
    };
    if (S::kGate && (p.bits & kBackwardNarrowGroups) != 0) {
      set_all([&](const BackwardTensor& t) {
        return ptx::advance(ptx::advance(t.data, at.group, static_cast<int32_t>(t.stride[1])),
                            at.row, static_cast<int32_t>(t.stride[0]));
      });
    } else if (!S::kGate && (p.bits & kBackwardNarrowStrides) != 0) {
      set_all([&](const BackwardTensor& t) {
        return ptx::advance(t.data, at.number, static_cast<int32_t>(t.stride[0]));
      });
    } else {
      const RowIndex index = backward_index(p, at.number);
      set_all([&](const BackwardTensor& t) { return row_address(t, index); });
    }
  }
  static constexpr int step(int v) { return v * S::kStride * kVectorBytes; }

  const char *of[S::kTensors], *rstd, *mean, *branch_rstd;
  char *dx, *other;  // other: dgate or dbranch
};

template <class S>
__device__ __forceinline__ Statistics load_statistics(const RowAddresses<S>& from) {
  Statistics s = {0.0f, ptx::ld_global_f32(from.rstd)};
  if constexpr (S::kStat == Stat::kLayer) s.mean = ptx::ld_global_f32(from.mean);
  return s;
}

// Of a branch dresidual_in may be absent.
template <class S>
__device__ __forceinline__ bool is_there(const NormBackwardParams& p, int tensor) {
  return !S::kBranch || tensor != kRowAdd || p.dresidual_in.data != nullptr;
}

template <class S>
__device__ __forceinline__ void clear_raw(RawRow<S>& raw) {
#pragma unroll
  for (int t = 0; t < S::kTensors; ++t) {
#pragma unroll
    for (uint4& vector : raw.of[t]) vector = make_uint4(0, 0, 0, 0);
  }
}

// Missing vectors, and all of a row that is not `live`, read as zero.
template <class S>
__device__ __forceinline__ void load_raw(RawRow<S>& raw, const NormBackwardParams& p,
                                         const RowAddresses<S>& from, bool live,
                                         const LanePlace<S>& place) {
  clear_raw(raw);
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    const bool wanted = live && place.has(v);
#pragma unroll
    for (int t = 0; t < S::kTensors; ++t)
      ptx::ld_global_v4_if(raw.of[t][v], from.of[t] + from.step(v), wanted && is_there<S>(p, t));
  }
}

// The gate's function of a vector, and its derivative.
template <class S>
__device__ __forceinline__ void gate_function(float (&factor)[S::kPerVector],
                                              float (&slope)[S::kPerVector], const uint4& gate_raw,
                                              const NormBackwardParams& p) {
  S::T::unpack(gate_raw, factor);
  if (p.gate_act == StageFunction::kSilu) {
    activate_with_slope<true>(factor, slope);
  } else {
    activate_with_slope<false>(factor, slope);
  }
}

// Multiplies d, which is dy, by the gate's function. dgate of the vector, as it is stored. The gate
// comes after the norm.
template <class S>
__device__ __forceinline__ uint4 apply_gate(float (&d)[S::kPerVector],
                                            const float (&x)[S::kPerVector], const uint4& gate_raw,
                                            const float (&gain)[S::kPerVector],
                                            const NormBackwardParams& p) {
  using T = typename S::T;
  float factor[S::kPerVector], slope[S::kPerVector], z[S::kPerVector];
  gate_function<S>(factor, slope, gate_raw, p);
#pragma unroll
  for (int i = 0; i < S::kPerVector; ++i) z[i] = x[i];
  constexpr uint32_t kRounds = kBackwardRoundNormalized | kBackwardRoundGain | kBackwardRoundResult;
  if (__builtin_expect((p.bits & kRounds) == 0, 1)) {
    multiply(z, gain);
  } else {
    if ((p.bits & kBackwardRoundGain) != 0) round_to<T>(factor);
    if ((p.bits & kBackwardRoundNormalized) != 0) round_to<T>(z);
    multiply(z, gain);
    if ((p.bits & kBackwardRoundResult) != 0) round_to<T>(z);
  }
#pragma unroll
  for (int i = 0; i < S::kPerVector; ++i) z[i] = __fmul_rn(__fmul_rn(d[i], z[i]), slope[i]);
  multiply(d, factor);
  return T::pack(z);
}

// Normalised values x, and e = d * gain, of one vector. d is dy, times the gate's function where
// there is a gate, whose gradient then goes to put(dgate).
template <class S, typename Put>
__device__ __forceinline__ void make_factors(float (&x)[S::kPerVector], float (&e)[S::kPerVector],
                                             float (&d)[S::kPerVector], const uint4& x_raw,
                                             const uint4& dy_raw, const uint4& gate_raw,
                                             const float (&gain)[S::kPerVector],
                                             const Statistics& statistics,
                                             const NormBackwardParams& p, Put put) {
  S::T::unpack(x_raw, x);
  S::T::unpack(dy_raw, d);
  if constexpr (S::kGate) {
#pragma unroll
    for (float& value : x) value = normalized<S::kStat>(value, statistics);
    put(apply_gate<S>(d, x, gate_raw, gain, p));
  }
#pragma unroll
  for (int i = 0; i < S::kPerVector; ++i) {
    if constexpr (!S::kGate) x[i] = normalized<S::kStat>(x[i], statistics);
    e[i] = __fmul_rn(d[i], gain[i]);
  }
}

// From x to the normalised values of x times `factor`, the function of a gate before the norm.
template <class S>
__device__ __forceinline__ void normalize_gated(float (&x)[S::kPerVector],
                                                const float (&factor)[S::kPerVector],
                                                const Statistics& statistics,
                                                const NormBackwardParams& p) {
  multiply(x, factor);
  if (__builtin_expect((p.bits & kBackwardRoundGain) != 0, 0)) round_to<typename S::T>(x);
#pragma unroll
  for (float& value : x) value = normalized<S::kStat>(value, statistics);
}

// make_factors() of a gate before the norm. keep(factor, slope) gets the gate's function, and its
// derivative.
template <class S, typename Keep>
__device__ __forceinline__ void make_factors_of_gated(float (&x)[S::kPerVector],
                                                      float (&e)[S::kPerVector],
                                                      float (&d)[S::kPerVector], const uint4& x_raw,
                                                      const uint4& dy_raw, const uint4& gate_raw,
                                                      const float (&gain)[S::kPerVector],
                                                      const Statistics& statistics,
                                                      const NormBackwardParams& p, Keep keep) {
  float factor[S::kPerVector], slope[S::kPerVector];
  gate_function<S>(factor, slope, gate_raw, p);
  if (__builtin_expect((p.bits & kBackwardRoundGain) != 0, 0)) round_to<typename S::T>(factor);
  keep(factor, slope);
  S::T::unpack(x_raw, x);
  S::T::unpack(dy_raw, d);
  normalize_gated<S>(x, factor, statistics, p);
#pragma unroll
  for (int i = 0; i < S::kPerVector; ++i) e[i] = __fmul_rn(d[i], gain[i]);
}

// The same of a branch, from r, the gradient of what was added. add(d) gets the gradient of the
// norm's result.
template <class S, typename Add>
__device__ __forceinline__ void make_branch_factors(float (&x)[S::kPerVector],
                                                    float (&e)[S::kPerVector],
                                                    const float (&r)[S::kPerVector],
                                                    const uint4& branch_raw,
                                                    const float (&gain)[S::kPerVector], float rstd,
                                                    const NormBackwardParams& p, Add add) {
  S::T::unpack(branch_raw, x);
  float d[S::kPerVector];
#pragma unroll
  for (int i = 0; i < S::kPerVector; ++i) {
    x[i] = __fmul_rn(x[i], rstd);
    d[i] = __fmul_rn(r[i], p.branch.alpha);
  }
  add(d);
#pragma unroll
  for (int i = 0; i < S::kPerVector; ++i) e[i] = __fmul_rn(d[i], gain[i]);
}

// A vector's share of a row's sums. A missing vector's is +0, whatever the statistics are.
template <class S>
__device__ __forceinline__ void vector_sums(float (&q)[S::kSums][S::kVectors], int v,
                                            const float (&x)[S::kPerVector],
                                            const float (&e)[S::kPerVector], bool has) {
  q[0][v] = has ? vector_dot(e, x) : 0.0f;
  if constexpr (S::kStat == Stat::kLayer) q[S::kSums - 1][v] = has ? vector_sum(e) : 0.0f;
}

// dh of one vector. What is added may be absent: then `adds` is false.
template <class S>
__device__ __forceinline__ void gradient_vector(float (&f)[S::kPerVector],
                                                const float (&x)[S::kPerVector],
                                                const float (&e)[S::kPerVector],
                                                const uint4& add_raw, const float (&c)[S::kSums],
                                                float rstd, bool adds = true) {
#pragma unroll
  for (int i = 0; i < S::kPerVector; ++i) f[i] = centred<S::kStat>(x[i], e[i], c);
  if constexpr (S::kResidual) {
    float add[S::kPerVector];
    S::T::unpack(add_raw, add);
    // A sum with -0 is the product.
#pragma unroll
    for (int i = 0; i < S::kPerVector; ++i)
      f[i] = __fmaf_rn(f[i], rstd, S::kBranch && !adds ? -0.0f : add[i]);
  } else {
#pragma unroll
    for (int i = 0; i < S::kPerVector; ++i) f[i] = __fmul_rn(f[i], rstd);
  }
}

// The row's additions to the sums of this thread's columns, of one vector. `round`: the bit of what
// rounds the normalised values.
template <class S>
__device__ __forceinline__ void add_row(float (&dweight)[S::kPerVector],
                                        float (&dbias)[S::kPerVector],
                                        const float (&d)[S::kPerVector],
                                        const float (&x)[S::kPerVector],
                                        const NormBackwardParams& p,
                                        uint32_t round = kBackwardRoundNormalized) {
  if constexpr (S::T::kBytes == 2) {
    if (__builtin_expect((p.bits & round) != 0, 0)) {
      float t[S::kPerVector];
#pragma unroll
      for (int i = 0; i < S::kPerVector; ++i) t[i] = x[i];
      round_to<typename S::T>(t);
      accumulate<S::kStat>(dweight, dbias, d, t);
      return;
    }
  }
  accumulate<S::kStat>(dweight, dbias, d, x);
}

// The gain of this thread's vectors; the weight may have any dtype and address.
template <class S>
__device__ __forceinline__ void load_gains(float (&gain)[S::kVectors][S::kPerVector],
                                           const NormBackwardParams& p, uint32_t group,
                                           const LanePlace<S>& place) {
  const AnyDtypeRow weight(p.weight.data == nullptr ? nullptr : group_address(p, p.weight, group),
                           p.weight.dtype);
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    load_gain(gain[v], p, weight, int64_t{place.vector(v)} * S::kPerVector,
              place.has(v) ? S::kPerVector : 0);
  }
}

}  // namespace fastnorm::cuda
