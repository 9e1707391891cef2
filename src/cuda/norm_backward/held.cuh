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
  static constexpr int kLanes = kV.lanes;
  static constexpr int kBlockThreads = kV.block_threads();
  static constexpr bool kOneWarp = kV.is_one_warp(), kCluster = kV.is_cluster();
  static constexpr int kWarps = kOneWarp ? 1 : kThreads / 32;  // of a row in its block
  static constexpr int kStride = kThreads * kBlocks;  // vectors of a thread lie so far apart
  static constexpr int kVectorStep = kStride * kVectorBytes;
  static constexpr bool kGate = kV.input == BackwardInput::kGated, kBranch = kV.has_branch();
  static constexpr bool kBranchNorm = kV.input == BackwardInput::kBranch;
  static constexpr bool kResidual = kV.input == BackwardInput::kAdd || kBranch;
  // dresidual_in may be absent.
  static constexpr bool kAsksForAdd = kV.asks_for_add();
  // Tensors of rows that are read: x, dy, then dresidual_in or the gate, then the branch.
  static constexpr int kTensors = kV.row_inputs(), kStatistics = kV.row_statistics();
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
  } else {
#pragma unroll
    for (int k = 0; k < kValues; ++k) q[k] = fold_lanes<32>(fold_warps_of(k));
  }
}

// The means c of a row's sums, from each thread's sums of its vectors. Set number `set` of
// `scratch` was used `use` times before.
template <class S, class Scratch>
__device__ __forceinline__ void fold_step_of_set(float (&c)[S::kSums],
                                                 float (&q)[S::kSums][S::kVectors],
                                                 Scratch& scratch, int set, uint32_t use,
                                                 const LanePlace<S>& place,
                                                 const NormBackwardParams& p) {
#pragma unroll
  for (int k = 0; k < S::kSums; ++k) c[k] = fold_registers(q[k]);
  fold_step_of_rows<S>(c, scratch, set, static_cast<int>(use), place);
#pragma unroll
  for (float& mean : c) mean = mean_of_sum(mean, p);
}

// fold_step_of_set() of step number `step`, where the sets take turns.
template <class S, class Scratch>
__device__ __forceinline__ void fold_step(float (&c)[S::kSums], float (&q)[S::kSums][S::kVectors],
                                          Scratch& scratch, uint32_t step,
                                          const LanePlace<S>& place, const NormBackwardParams& p) {
  fold_step_of_set<S>(c, q, scratch, static_cast<int>(step & 1), step >> 1, place, p);
}

// The tensors of rows. The first ones are read, and RawRow and the ring have them in this order.
// kRowAdd: dresidual_in. kRowOther: dgate or dbranch.
enum HeldTensor {
  kRowX,
  kRowDy,
  kRowAdd,
  kRowBranch,
  kRowDx,
  kRowOther,
  kRowRstd,
  kRowMean,
  kRowBranchRstd,
  kHeldTensors,
  kRowGate = kRowAdd
};

template <class S>
__device__ __forceinline__ const BackwardTensor& held_tensor(const NormBackwardParams& p, int t) {
  switch (t) {
    case kRowX:
      return p.x;
    case kRowDy:
      return p.dy;
    case kRowAdd:
      return S::kGate ? p.gate : p.dresidual_in;
    case kRowBranch:
      return p.branch.branch;
    case kRowDx:
      return p.dx;
    case kRowOther:
      return S::kGate ? p.dgate : p.branch.dbranch;
    case kRowRstd:
      return p.rstd;
    case kRowMean:
      return p.mean;
    default:
      return p.branch.rstd;
  }
}

template <class S>
__device__ __forceinline__ bool is_there(const NormBackwardParams& p, int tensor) {
  return !S::kAsksForAdd || tensor != kRowAdd || p.dresidual_in.data != nullptr;
}

// Addresses of a thread's first vector in the rows of a group, and of what a row has one value of.
// kLean: the group's rows are evenly strided, so that an address takes one product.
template <class S, bool kLean>
struct RowAddresses {
  __device__ __forceinline__ RowAddresses(const NormBackwardParams& p, uint32_t group,
                                          int64_t vector_offset)
      : first_row(group * p.shared_rows), offset(vector_offset) {
    if constexpr (kLean) {
#pragma unroll
      for (int t = 0; t < kHeldTensors; ++t)
        first[t] = held_tensor<S>(p, t).data + (t < kRowRstd ? offset : 0);
      if (first_row == 0) return;
      const RowIndex index = backward_index(p, first_row);
#pragma unroll
      for (int t = 0; t < kHeldTensors; ++t) first[t] += row_offset(held_tensor<S>(p, t), index);
    }
  }

  // The address of row `row` of the group. There need not be such a row.
  __device__ __forceinline__ char* at(const NormBackwardParams& p, int t, uint32_t row) const {
    const BackwardTensor& tensor = held_tensor<S>(p, t);
    if constexpr (kLean) {
      return ptx::advance(first[t], row, static_cast<int32_t>(tensor.stride[0]));
    } else {
      return row_address(tensor, backward_index(p, first_row + row)) + (t < kRowRstd ? offset : 0);
    }
  }

 private:
  char* first[kLean ? kHeldTensors : 1];
  uint32_t first_row;
  int64_t offset;
};

// What a row has one value of, as RawRow and the ring have them.
template <class S>
__device__ __forceinline__ HeldTensor statistic_of(int number) {
  return number == 0                               ? kRowRstd
         : number == 1 && S::kStat == Stat::kLayer ? kRowMean
                                                   : kRowBranchRstd;
}

// This thread's vectors of a row as they were loaded, and the row's statistics.
template <class S>
struct RawRow {
  __device__ __forceinline__ Statistics statistics() const {
    return {S::kStat == Stat::kLayer ? statistic[1] : 0.0f, statistic[0]};
  }

  uint4 of[S::kTensors][S::kVectors];
  float statistic[S::kStatistics];
};

// The statistics of a row. Where the group has no such row, they read as zero.
template <class S, bool kLean>
__device__ __forceinline__ void load_row_statistics(float (&statistic)[S::kStatistics],
                                                    const NormBackwardParams& p,
                                                    const RowAddresses<S, kLean>& rows,
                                                    uint32_t row) {
#pragma unroll
  for (int k = 0; k < S::kStatistics; ++k) {
    statistic[k] = 0.0f;
    if (row < p.shared_rows) statistic[k] = ptx::ld_global_f32(rows.at(p, statistic_of<S>(k), row));
  }
}

// Missing vectors, and all of a row that the group does not have, read as zero.
template <class S, bool kLean>
__device__ __forceinline__ void load_raw(RawRow<S>& raw, const NormBackwardParams& p,
                                         const RowAddresses<S, kLean>& rows, uint32_t row,
                                         const LanePlace<S>& place) {
  const bool live = row < p.shared_rows;
#pragma unroll
  for (int t = 0; t < S::kTensors; ++t) {
    const char* const from = rows.at(p, t, row);
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      raw.of[t][v] = make_uint4(0, 0, 0, 0);
      ptx::ld_global_v4_if(raw.of[t][v], from + v * S::kVectorStep,
                           live && place.has(v) && is_there<S>(p, t));
    }
  }
  load_row_statistics<S>(raw.statistic, p, rows, row);
}

// The gate's function of a vector, and its derivative.
template <class S, bool kLean>
__device__ __forceinline__ void gate_function(float (&factor)[S::kPerVector],
                                              float (&slope)[S::kPerVector], const uint4& gate_raw,
                                              const NormBackwardParams& p) {
  S::T::unpack(gate_raw, factor);
  activate_with_slope<kLean>(factor, slope, p.gate_act);
}

// Rounds what a gate's options round. kLean: nothing.
template <class S, bool kLean>
__device__ __forceinline__ void round_gated(float (&f)[S::kPerVector],
                                            const NormBackwardParams& p) {
  if constexpr (!kLean) {
    if ((p.bits & kBackwardRoundGain) != 0) round_to<typename S::T>(f);
  }
}

// Multiplies d, which is dy, by the gate's function. dgate of the vector, as it is stored. The gate
// comes after the norm.
template <class S, bool kLean>
__device__ __forceinline__ uint4 apply_gate(float (&d)[S::kPerVector],
                                            const float (&x)[S::kPerVector], const uint4& gate_raw,
                                            const float (&gain)[S::kPerVector],
                                            const NormBackwardParams& p) {
  using T = typename S::T;
  float factor[S::kPerVector], slope[S::kPerVector], z[S::kPerVector];
  gate_function<S, kLean>(factor, slope, gate_raw, p);
  copy_values(z, x);
  if constexpr (kLean) {
    multiply(z, gain);
  } else {
    round_gated<S, kLean>(factor, p);
    if ((p.bits & kBackwardRoundNormalized) != 0) round_to<T>(z);
    multiply(z, gain);
    if ((p.bits & kBackwardRoundResult) != 0) round_to<T>(z);
  }
#pragma unroll
  for (int i = 0; i < S::kPerVector; ++i) z[i] = __fmul_rn(__fmul_rn(d[i], z[i]), slope[i]);
  multiply(d, factor);
  return T::pack(z);
}

// Normalised values x, d = dy, and e = d * gain, of one vector.
template <class S>
__device__ __forceinline__ void make_factors(float (&x)[S::kPerVector], float (&e)[S::kPerVector],
                                             float (&d)[S::kPerVector], const uint4& x_raw,
                                             const uint4& dy_raw,
                                             const float (&gain)[S::kPerVector],
                                             const Statistics& statistics) {
  S::T::unpack(x_raw, x);
  S::T::unpack(dy_raw, d);
#pragma unroll
  for (int i = 0; i < S::kPerVector; ++i) {
    x[i] = normalized<S::kStat>(x[i], statistics);
    e[i] = __fmul_rn(d[i], gain[i]);
  }
}

// The same where a gate comes after the norm; dgate of the vector, as it is stored.
template <class S, bool kLean, class Feed>
__device__ __forceinline__ uint4 make_gated_factors(float (&x)[S::kPerVector],
                                                    float (&e)[S::kPerVector],
                                                    float (&d)[S::kPerVector], const Feed& feed,
                                                    int v, const float (&gain)[S::kPerVector],
                                                    const Statistics& statistics,
                                                    const NormBackwardParams& p) {
  S::T::unpack(feed.take(kRowX, v), x);
  S::T::unpack(feed.take(kRowDy, v), d);
#pragma unroll
  for (float& value : x) value = normalized<S::kStat>(value, statistics);
  const uint4 of_gate = apply_gate<S, kLean>(d, x, feed.take(kRowGate, v), gain, p);
#pragma unroll
  for (int i = 0; i < S::kPerVector; ++i) e[i] = __fmul_rn(d[i], gain[i]);
  return of_gate;
}

// From x to the normalised values of x times `factor`, the function of a gate before the norm.
template <class S, bool kLean>
__device__ __forceinline__ void normalize_gated(float (&x)[S::kPerVector],
                                                const float (&factor)[S::kPerVector],
                                                const Statistics& statistics,
                                                const NormBackwardParams& p) {
  multiply(x, factor);
  round_gated<S, kLean>(x, p);
#pragma unroll
  for (float& value : x) value = normalized<S::kStat>(value, statistics);
}

// make_factors() of a branch, from r, the gradient of what was added. d gets the gradient of the
// norm's result.
template <class S>
__device__ __forceinline__ void make_branch_factors(
    float (&x)[S::kPerVector], float (&e)[S::kPerVector], float (&d)[S::kPerVector],
    const float (&r)[S::kPerVector], const uint4& branch_raw, const float (&gain)[S::kPerVector],
    float rstd, const NormBackwardParams& p) {
  S::T::unpack(branch_raw, x);
#pragma unroll
  for (int i = 0; i < S::kPerVector; ++i) {
    x[i] = __fmul_rn(x[i], rstd);
    d[i] = __fmul_rn(r[i], p.branch.alpha);
    e[i] = __fmul_rn(d[i], gain[i]);
  }
}

// A vector's share of a row's sums. A missing vector's is +0, whatever the statistics are.
template <class S>
__device__ __forceinline__ void vector_sums(float (&q)[S::kSums][S::kVectors], int v,
                                            const float (&x)[S::kPerVector],
                                            const float (&e)[S::kPerVector], bool has) {
  // Without a register of its own the sum would be computed in a branch.
  const float dot = ptx::in_register(vector_dot(e, x));
  q[0][v] = has ? dot : 0.0f;
  if constexpr (S::kStat == Stat::kLayer) {
    const float sum = ptx::in_register(vector_sum(e));
    q[S::kSums - 1][v] = has ? sum : 0.0f;
  }
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
      f[i] = __fmaf_rn(f[i], rstd, S::kAsksForAdd && !adds ? -0.0f : add[i]);
  } else {
#pragma unroll
    for (int i = 0; i < S::kPerVector; ++i) f[i] = __fmul_rn(f[i], rstd);
  }
}

// The row's additions to the sums of this thread's columns, of one vector. `round`: the bit of what
// rounds the normalised values. kLean: nothing does.
template <class S, bool kLean>
__device__ __forceinline__ void add_row(float (&dweight)[S::kPerVector],
                                        float (&dbias)[S::kPerVector],
                                        const float (&d)[S::kPerVector],
                                        const float (&x)[S::kPerVector],
                                        const NormBackwardParams& p,
                                        uint32_t round = kBackwardRoundNormalized) {
  if constexpr (!kLean && S::T::kBytes == 2) {
    if ((p.bits & round) != 0) {
      float t[S::kPerVector];
      copy_values(t, x);
      round_to<typename S::T>(t);
      accumulate<S::kStat>(dweight, dbias, d, t);
      return;
    }
  }
  accumulate<S::kStat>(dweight, dbias, d, x);
}

// The gain of this thread's vectors. kLean: the weight is aligned and of T or f32, or absent. In
// other calls it may have any dtype and address.
template <class S, bool kLean>
__device__ __forceinline__ void load_gains(float (&gain)[S::kVectors][S::kPerVector],
                                           const NormBackwardParams& p, uint32_t group,
                                           const LanePlace<S>& place) {
  const char* const row = p.weight.data == nullptr ? nullptr : group_address(p, p.weight, group);
  if constexpr (!kLean) {
    const DtypeRow<typename S::T> weight(const_cast<char*>(row), p.weight.dtype);
    // One copy of the code that loads any dtype at any address.
#pragma unroll 1
    for (int v = 0; v < S::kVectors; ++v) {
      const int vector = place.vector(v);
      float loaded[S::kPerVector];
      load_gain<typename S::T>(loaded, p, weight, vector, vector < p.vectors ? S::kPerVector : 0);
#pragma unroll
      for (int k = 0; k < S::kVectors; ++k) {
#pragma unroll
        for (int i = 0; i < S::kPerVector; ++i) gain[k][i] = k == v ? loaded[i] : gain[k][i];
      }
    }
  } else {
    using F32 = Element<Dtype::kF32>;
    constexpr int kWords = S::kPerVector / F32::kPerVector;
    const bool is_f32 = S::T::kBytes == 4 || p.weight.dtype == Dtype::kF32;
    uint4 raw[S::kVectors][kWords];
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      const int64_t vector = place.vector(v);
      const bool there = row != nullptr && place.has(v);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        raw[v][i] = make_uint4(0, 0, 0, 0);
        const int64_t number = is_f32 ? vector * kWords + i : vector;
        ptx::ld_global_v4_if(raw[v][i], row + number * kVectorBytes, there && (is_f32 || i == 0));
      }
    }
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      if (is_f32) {
#pragma unroll
        for (int i = 0; i < S::kPerVector; ++i)
          gain[v][i] = __uint_as_float(word_of(raw[v][i / 4], i % 4));
      } else {
        S::T::unpack(raw[v][0], gain[v]);
      }
#pragma unroll
      for (float& g : gain[v]) g = row == nullptr ? 1.0f : __fadd_rn(g, p.weight_offset);
    }
  }
}

}  // namespace fastnorm::cuda
