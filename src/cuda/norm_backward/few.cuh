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

template <class S>
__device__ __forceinline__ void gradient_of_one_row(const NormBackwardParams& p, uint32_t block) {
  constexpr int kVectors = S::kVectors, kPerVector = S::kPerVector;
  auto& scratch = ptx::block_shared<StepScratch<S, S::kSums, 1>>();
  const LanePlace<S> place(p);
  const uint32_t number = block * S::kLanes + static_cast<uint32_t>(place.row_lane);
  const bool live = number < p.shared_rows;
  const uint32_t group = blockIdx.y, row = live ? number : 0;
  const RowAddresses<S> from(p, {group * p.shared_rows + row, group, row}, place.offset());
  RawRow<S> raw;
  load_raw(raw, p, from, live, place);
  const Statistics statistics = load_statistics(from);
  float gain[kVectors][kPerVector];
  load_gains<S>(gain, p, group, place);
  float x[kVectors][kPerVector], e[kVectors][kPerVector], sums[S::kSums][kVectors], q[S::kSums];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float d[kPerVector];
    make_factors<S>(x[v], e[v], d, raw.of[kRowX][v], raw.of[kRowDy][v], raw.of[kRowX][v], gain[v],
                    statistics, p, [](const uint4&) {});
    vector_sums<S>(sums, v, x[v], e[v], place.has(v));
  }
#pragma unroll
  for (int k = 0; k < S::kSums; ++k) q[k] = fold_registers(sums[k]);
  fold_step_of_rows<S>(q, scratch, 0, 0, place);
#pragma unroll
  for (float& c : q) c = mean_of_sum(c, p);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float f[kPerVector];
    gradient_vector<S>(f, x[v], e[v], raw.of[S::kResidual ? kRowAdd : kRowX][v], q,
                       statistics.rstd);
    const uint4 result = S::T::pack(f);
    if (live && place.has(v)) ptx::st_global_v4(from.dx + from.step(v), result);
  }
}

template <class S>
__device__ __forceinline__ void sums_of_owned_columns(const NormBackwardParams& p) {
  constexpr int kPerVector = S::kPerVector, kColumns = S::kV.column_vectors;
  constexpr int kChains = S::kV.chains, kUnroll = S::kUnroll;
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
  const uint32_t group_row = group * p.shared_rows;
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
  const int64_t offset = int64_t{vector} * kVectorBytes;
#pragma unroll 1
  for (uint32_t at = 0; at < p.shared_rows; at += p.step * kUnroll) {
    uint4 x[kUnroll][kChains], dy[kUnroll][kChains];
    Statistics statistics[kUnroll][kChains];
    const auto row_of = [&](int u, int k) { return first[k] + at + u * p.step; };
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int k = 0; k < kChains; ++k) {
        const uint32_t row = row_of(u, k);
        x[u][k] = dy[u][k] = make_uint4(0, 0, 0, 0);
        statistics[u][k] = {0.0f, 0.0f};
        if (row < p.shared_rows) {
          const RowAddresses<S> from(p, {group_row + row, group, row}, offset);
          x[u][k] = ptx::ld_global_v4(from.of[kRowX]);
          dy[u][k] = ptx::ld_global_v4(from.of[kRowDy]);
          statistics[u][k] = load_statistics(from);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int k = 0; k < kChains; ++k) {
        if (row_of(u, k) >= p.shared_rows) continue;
        float t[kPerVector], d[kPerVector];
        S::T::unpack(x[u][k], t);
        S::T::unpack(dy[u][k], d);
#pragma unroll
        for (float& value : t) value = normalized<S::kStat>(value, statistics[u][k]);
        add_row<S>(dweight[k], dbias[kBias ? k : 0], d, t, p);
      }
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

template <class S>
__device__ __forceinline__ void gradient_at_once(const NormBackwardParams& p) {
  static_assert(!S::kGate && !S::kBranch);
  constexpr uint32_t kColumns = S::kV.column_vectors;
  const bool has_sums = p.dweight.data != nullptr || p.dbias.data != nullptr;
  const uint32_t column_blocks =
      has_sums ? (static_cast<uint32_t>(p.vectors) + kColumns - 1) / kColumns : 0;
  ptx::grid_wait();
  if ((p.bits & kBackwardTrigger) != 0) ptx::grid_trigger();
  if (blockIdx.x < column_blocks) {
    sums_of_owned_columns<S>(p);
  } else {
    gradient_of_one_row<S>(p, blockIdx.x - column_blocks);
  }
}

}  // namespace fastnorm::cuda
