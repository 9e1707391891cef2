// Few aligned rows in one launch, without partial sums in memory. dweight needs no sum along a row,
// so some blocks own columns and go over all rows. The others own rows and write dx. x and dy are
// read twice, the second time from L2. So dx must not overwrite an input, and the call must pass
// the statistics. Without dweight and dbias there are only blocks of rows.
//
// A thread of the columns' blocks has chains, the lanes of the row order. A chain's number is its
// lane's, then its block's; the highest digits are in registers, then in warps, then in lanes.
#pragma once

#include "cuda/norm_backward/held.cuh"

namespace fastnorm::cuda {

template <class S, bool kLean>
__device__ __forceinline__ void gradient_of_one_row(const NormBackwardParams& p, uint32_t block) {
  constexpr int kVectors = S::kVectors, kPerVector = S::kPerVector;
  auto& scratch = ptx::block_shared<StepScratch<S, S::kSums, 1>>();
  const LanePlace<S> place(p);
  const uint32_t number = block * S::kLanes + static_cast<uint32_t>(place.row_lane);
  const bool live = number < p.shared_rows;
  const RowAddresses<S, kLean> rows(p, blockIdx.y, place.offset());
  RawRow<S> raw;
  load_raw(raw, p, rows, number, place);
  const Statistics statistics = raw.statistics();
  float gain[kVectors][kPerVector];
  load_gains<S, kLean>(gain, p, blockIdx.y, place);
  float x[kVectors][kPerVector], e[kVectors][kPerVector], q[S::kSums][kVectors], c[S::kSums];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float d[kPerVector];
    make_factors<S>(x[v], e[v], d, raw.of[kRowX][v], raw.of[kRowDy][v], gain[v], statistics);
    vector_sums<S>(q, v, x[v], e[v], place.has(v));
  }
  fold_step_of_set<S>(c, q, scratch, 0, 0, place, p);
  char* const dx = rows.at(p, kRowDx, number);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float f[kPerVector];
    gradient_vector<S>(f, x[v], e[v], raw.of[kRowAdd][v], c, statistics.rstd,
                       is_there<S>(p, kRowAdd));
    const uint4 result = S::T::pack(f);
    if (live && place.has(v)) ptx::st_global_v4(dx + v * S::kVectorStep, result);
  }
}

template <class S, bool kLean>
__device__ __forceinline__ void sums_of_owned_columns(const NormBackwardParams& p) {
  constexpr int kPerVector = S::kPerVector, kColumns = S::kV.column_vectors;
  constexpr int kChains = S::kV.chains;
  constexpr int kRowThreads = S::kBlockThreads / kColumns;
  constexpr int kWarps = S::kBlockThreads / 32;
  constexpr bool kBias = S::kSums > 1;
  struct Buffer {
    float values[kPerVector][S::kBlockThreads];
  };
  auto& values = ptx::block_shared<Buffer>().values;
  const uint32_t column = threadIdx.x % kColumns, row_thread = threadIdx.x / kColumns;
  const uint32_t vector = blockIdx.x * kColumns + column, group = blockIdx.y;
  const bool in_row = vector < static_cast<uint32_t>(p.vectors);
  const RowAddresses<S, kLean> rows(p, group, int64_t{vector} * kVectorBytes);
  float dweight[kChains][kPerVector], dbias[kBias ? kChains : 1][kPerVector];
  uint32_t first[kChains];  // row of each chain
#pragma unroll
  for (int k = 0; k < kChains; ++k) {
    const uint32_t chain = row_thread + kRowThreads * k;
    const uint32_t lane = chain / p.fold_blocks, block = chain % p.fold_blocks;
    const bool exists = in_row && lane < p.lanes && block < p.blocks;
    first[k] = exists ? block * p.lanes + lane : p.shared_rows;
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) dweight[k][i] = dbias[kBias ? k : 0][i] = 0.0f;
  }
#pragma unroll 1
  for (uint32_t at = 0; at < p.shared_rows; at += p.step) {
    uint4 x[kChains], dy[kChains];
    Statistics statistics[kChains];
#pragma unroll
    for (int k = 0; k < kChains; ++k) {
      const uint32_t row = first[k] + at;
      x[k] = dy[k] = make_uint4(0, 0, 0, 0);
      statistics[k] = {0.0f, 0.0f};
      if (row < p.shared_rows) {
        x[k] = ptx::ld_global_v4(rows.at(p, kRowX, row));
        dy[k] = ptx::ld_global_v4(rows.at(p, kRowDy, row));
        statistics[k].rstd = ptx::ld_global_f32(rows.at(p, kRowRstd, row));
        if constexpr (kBias) statistics[k].mean = ptx::ld_global_f32(rows.at(p, kRowMean, row));
      }
    }
#pragma unroll
    for (int k = 0; k < kChains; ++k) {
      if (first[k] + at >= p.shared_rows) continue;
      float t[kPerVector], d[kPerVector];
      S::T::unpack(x[k], t);
      S::T::unpack(dy[k], d);
#pragma unroll
      for (float& value : t) value = normalized<S::kStat>(value, statistics[k]);
      add_row<S, kLean>(dweight[k], dbias[kBias ? k : 0], d, t, p);
    }
  }

#pragma unroll
  for (int sum = 0; sum < S::kSums; ++sum) {
    const BackwardTensor& out = sum == 0 ? p.dweight : p.dbias;
    if (out.data == nullptr) continue;
    const bool accumulates =
        (p.bits & (sum == 0 ? kBackwardAccumulateDweight : kBackwardAccumulateDbias)) != 0;
    if (sum > 0) __syncthreads();
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) {
      float chain[kChains];
#pragma unroll
      for (int k = 0; k < kChains; ++k)
        chain[k] = sum == 0 ? dweight[k][i] : dbias[kBias ? k : 0][i];
      values[i][threadIdx.x] = fold_registers(chain);
    }
    __syncthreads();
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = threadIdx.x / 32; i < kPerVector; i += kWarps) {
      float w[kWarps];
#pragma unroll
      for (int k = 0; k < kWarps; ++k) w[k] = values[i][k * 32 + lane];
      float total = fold_registers(w);
#pragma unroll
      for (int half = 16; half >= kColumns; half /= 2)
        total = __fadd_rn(total, __shfl_xor_sync(~0u, total, half));
      const uint32_t of_vector = blockIdx.x * kColumns + lane;
      if (lane < kColumns && of_vector < static_cast<uint32_t>(p.vectors)) {
        const int64_t element = int64_t{of_vector} * kPerVector + i;
        store_sum(p, out,
                  group_address(p, out, group) + element * (out.dtype == Dtype::kF32 ? 4 : 2),
                  total, accumulates);
      }
    }
  }
}

template <class S, bool kLean>
__device__ __forceinline__ void gradient_at_once(const NormBackwardParams& p) {
  static_assert(S::kResidual && !S::kBranch);
  constexpr uint32_t kColumns = S::kV.column_vectors;
  const bool has_sums = p.dweight.data != nullptr || p.dbias.data != nullptr;
  const uint32_t column_blocks =
      has_sums ? (static_cast<uint32_t>(p.vectors) + kColumns - 1) / kColumns : 0;
  ptx::grid_wait();
  if ((p.bits & kBackwardTrigger) != 0) ptx::grid_trigger();
  if (blockIdx.x < column_blocks) {
    sums_of_owned_columns<S, kLean>(p);
  } else {
    gradient_of_one_row<S, kLean>(p, blockIdx.x - column_blocks);
  }
}

}  // namespace fastnorm::cuda
