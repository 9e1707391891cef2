// The rows of a lane of the row order, one after another: what all persistent forms share.
//
// The next rows are on their way while a row is worked on: into a ring in shared memory, or into
// registers. A thread reads from the ring only what it copied itself, so no barrier is needed.
#pragma once

#include "cuda/common/ptx/store_shared.cuh"
#include "cuda/norm_backward/general.cuh"
#include "cuda/norm_backward/held.cuh"

namespace fastnorm::cuda {

// A thread block's place in the row order, and its thread's first row.
template <class S>
struct LanePosition {
  __device__ __forceinline__ LanePosition(const NormBackwardParams& p, const LanePlace<S>& place)
      : group(blockIdx.y) {
    const uint32_t number = blockIdx.x / S::kBlocks;
    share = number & ((1u << p.split_bits) - 1);
    block = number >> p.split_bits;
    block_row = block * p.lanes;
    first_row = block_row + share + (static_cast<uint32_t>(place.row_lane) << p.split_bits);
  }

  // In floats, of the block's sums.
  __device__ __forceinline__ int64_t partial_row(const NormBackwardParams& p) const {
    return (((int64_t{group} * p.blocks + block) << p.split_bits) + share) * p.partial_stride;
  }

  uint32_t group;
  uint32_t block, share;  // thread block number `share` of those that have the block's lanes
  uint32_t block_row;     // of lane 0
  uint32_t first_row;
};

// A ring of rows in shared memory: [stage][tensor][vector][thread]. The stage that is read and the
// one that is free again go round. A row's statistics come to registers, a step ahead: as copies of
// one word to all threads they would take as long as the row.
template <class S, bool kLean>
struct RowRing {
  static constexpr int kStages = S::kV.stages, kVectorStep = S::kBlockThreads * kVectorBytes,
                       kTensorStep = S::kVectors * kVectorStep, kStageStep = S::kV.stage_bytes(),
                       kEnd = S::kV.ring_bytes();

  // All stages but one are on their way.
  __device__ __forceinline__ void begin(const NormBackwardParams& p,
                                        const RowAddresses<S, kLean>& rows, uint32_t row,
                                        const LanePlace<S>& place) {
    load_row_statistics<S>(next, p, rows, row);
#pragma unroll
    for (; free + kStageStep < kEnd; free += kStageStep, row += p.step) copy(p, rows, row, place);
  }
  // Before `row` is read, the last of the stages is asked for.
  __device__ __forceinline__ void arrive(const NormBackwardParams& p,
                                         const RowAddresses<S, kLean>& rows, uint32_t row,
                                         const LanePlace<S>& place) {
    copy_values(of_row, next);
    load_row_statistics<S>(next, p, rows, row + p.step);
    copy(p, rows, row + (kStages - 1) * p.step, place);
    ptx::copy_async_wait_group<kStages - 1>();
  }
  __device__ __forceinline__ uint4 take(int tensor, int v) const {
    return ptx::ld_shared_v4(slot(now, tensor, v));
  }
  __device__ __forceinline__ float statistic(int k) const { return of_row[k]; }
  __device__ __forceinline__ void advance() {
    free = now;
    now = now + kStageStep == kEnd ? 0 : now + kStageStep;
  }
  __device__ __forceinline__ void end() const { ptx::copy_async_wait(); }

 private:
  static __device__ __forceinline__ char* slot(int stage, int tensor, int v) {
    return ptx::launch_shared() + stage + threadIdx.x * kVectorBytes + tensor * kTensorStep +
           v * kVectorStep;
  }
  __device__ __forceinline__ void copy(const NormBackwardParams& p,
                                       const RowAddresses<S, kLean>& rows, uint32_t row,
                                       const LanePlace<S>& place) const {
    const bool live = row < p.shared_rows;
#pragma unroll
    for (int t = 0; t < S::kTensors; ++t) {
      const char* const from = rows.at(p, t, row);
#pragma unroll
      for (int v = 0; v < S::kVectors; ++v) {
        ptx::copy_async_or_zero(slot(free, t, v), from + v * S::kVectorStep,
                                live && place.has(v) && is_there<S>(p, t));
      }
    }
    ptx::copy_async_commit();
  }

  float of_row[S::kStatistics], next[S::kStatistics];
  int now = 0, free = 0;  // bytes
};

// The next row in registers.
template <class S, bool kLean>
struct RowsAhead {
  __device__ __forceinline__ void begin(const NormBackwardParams& p,
                                        const RowAddresses<S, kLean>& rows, uint32_t row,
                                        const LanePlace<S>& place) {
    load_raw(now, p, rows, row, place);
  }
  __device__ __forceinline__ void arrive(const NormBackwardParams& p,
                                         const RowAddresses<S, kLean>& rows, uint32_t row,
                                         const LanePlace<S>& place) {
    load_raw(next, p, rows, row + p.step, place);
  }
  __device__ __forceinline__ uint4 take(int tensor, int v) const { return now.of[tensor][v]; }
  __device__ __forceinline__ float statistic(int k) const { return now.statistic[k]; }
  __device__ __forceinline__ void advance() { now = next; }
  __device__ __forceinline__ void end() const {}

 private:
  RawRow<S> now, next;
};

struct StepRow {
  uint32_t row;  // of the group
  bool live;     // the group has it
  uint32_t step;
  Statistics statistics;
};

// Goes over a lane's rows: for_each(body) calls body(row, feed), in which feed.take() has the row's
// vectors. The last step may have a row that is not live. Its vectors and statistics are zero, and
// dweight and dbias leave it out. That is a branch, behind which no addition waits for the fold.
template <class S, bool kLean>
struct LaneRows {
  __device__ __forceinline__ LaneRows(const NormBackwardParams& params,
                                      const LanePlace<S>& of_thread)
      : p(params), place(of_thread), at(p, place), rows(p, at.group, place.offset()) {
    feed.begin(p, rows, at.first_row, place);
  }

  template <typename Body>
  __device__ __forceinline__ void for_each(Body body) {
    uint32_t row = at.first_row, step = 0;
#pragma unroll 1
    for (uint32_t first = at.block_row; first < p.shared_rows; first += p.step) {
      feed.arrive(p, rows, row, place);
      const float mean = S::kStat == Stat::kLayer ? feed.statistic(1) : 0.0f;
      body(StepRow{row, row < p.shared_rows, step, {mean, feed.statistic(0)}}, feed);
      feed.advance();
      row += p.step, ++step;
    }
    feed.end();
    if ((p.bits & kBackwardTrigger) != 0) ptx::grid_trigger();
  }

  __device__ __forceinline__ char* address(HeldTensor t, uint32_t row) const {
    return rows.at(p, t, row);
  }

  const NormBackwardParams& p;
  const LanePlace<S>& place;
  const LanePosition<S> at;
  const RowAddresses<S, kLean> rows;

 private:
  std::conditional_t<S::kV.has_ring(), RowRing<S, kLean>, RowsAhead<S, kLean>> feed;
};

// Sums of this thread's columns over its rows.
template <class S>
struct ColumnSums {
  __device__ __forceinline__ ColumnSums() {
#pragma unroll
    for (auto& vector : of) {
      fill_values(vector, 0.0f);
    }
  }

  // The lanes of the thread block folded, and stored to its place among partial sums. The lanes'
  // numbers have their highest digits in a thread's registers, the lowest in threads side by side.
  __device__ __forceinline__ void store(float* to, const LanePlace<S>& place,
                                        const NormBackwardParams& p) const {
    constexpr int kPerVector = S::kPerVector;
    if constexpr (S::kLanes == 1) {
#pragma unroll
      for (int v = 0; v < S::kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < kPerVector; i += 4) {
          if (place.has(v)) store_four(to + place.vector(v) * kPerVector + i, &of[v][i]);
        }
      }
    } else {
      constexpr int kWidth = S::kThreads * S::kVectors * kPerVector, kFours = kWidth / 4;
      constexpr int kLow = S::kBlockThreads > kFours ? S::kBlockThreads / kFours : 1;
      constexpr int kHigh = S::kLanes / kLow;
      static_assert(kHigh * kLow == S::kLanes && kFours % (S::kBlockThreads / kLow) == 0);
      auto* const values = reinterpret_cast<float*>(ptx::launch_shared());
      const auto number = static_cast<int>(threadIdx.x);
      __syncthreads();  // the ring, or the other sums, have been read
#pragma unroll
      for (int v = 0; v < S::kVectors; ++v) {
        float* const own = values + place.row_lane * kWidth + place.vector(v) * kPerVector;
#pragma unroll
        for (int i = 0; i < kPerVector; i += 4) ptx::st_shared_v4(own + i, as_words(&of[v][i]));
      }
      __syncthreads();
#pragma unroll
      for (int first = 0; first < kFours; first += S::kBlockThreads / kLow) {
        const int column = (first + number % (S::kBlockThreads / kLow)) * 4;
        const int low = number / (S::kBlockThreads / kLow);
        float total[4];
        fold_fours<kHigh>(total, values + low * kWidth + column, kLow * kWidth);
        if constexpr (kLow > 1) {
          // Nobody else reads what is overwritten.
          ptx::st_shared_v4(values + low * kWidth + column, as_words(total));
          __syncthreads();
          if (low == 0) fold_fours<kLow>(total, values + column, kWidth);
        }
        if (low == 0 && column < p.n) store_four(to + column, total);
      }
    }
  }

  static __device__ __forceinline__ void store_four(float* to, const float* f) {
    ptx::st_global_v4(to, as_words(f));
  }
  // Four columns of kCount rows.
  template <int kCount>
  static __device__ __forceinline__ void fold_fours(float (&total)[4], const float* from,
                                                    int stride) {
    float q[4][kCount];
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const uint4 v = ptx::ld_shared_v4(from + r * stride);
      q[0][r] = __uint_as_float(v.x), q[1][r] = __uint_as_float(v.y);
      q[2][r] = __uint_as_float(v.z), q[3][r] = __uint_as_float(v.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) total[i] = fold_registers(q[i]);
  }

  float of[S::kVectors][S::kPerVector];
};

// RMSNorm has no dbias: one vector stands for its sums.
template <class S>
struct NoColumnSums {
  float of[1][S::kPerVector];
};

// dweight and dbias.
template <class S>
struct WeightSums {
  template <bool kLean>
  __device__ __forceinline__ void add(int v, const float (&d)[S::kPerVector],
                                      const float (&x)[S::kPerVector],
                                      const NormBackwardParams& p) {
    add_row<S, kLean>(dweight.of[v], dbias.of[S::kSums > 1 ? v : 0], d, x, p);
  }
  __device__ __forceinline__ void store(const NormBackwardParams& p, int64_t partial_row,
                                        const LanePlace<S>& place) const {
    if (p.dweight.data != nullptr) dweight.store(p.partial[0] + partial_row, place, p);
    if constexpr (S::kSums > 1) {
      if (p.dbias.data != nullptr) dbias.store(p.partial[1] + partial_row, place, p);
    }
  }

  ColumnSums<S> dweight;
  std::conditional_t<(S::kSums > 1), ColumnSums<S>, NoColumnSums<S>> dbias;
};

// A block of a cluster must not exit while other blocks still write to its shared memory.
template <class S>
__device__ __forceinline__ void end_steps() {
  if constexpr (S::kCluster) {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }
}

}  // namespace fastnorm::cuda
