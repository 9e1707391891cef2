// The general form of calls with a branch: any dtypes, any address, rows of any length. x is the
// sum of a residual and a branch. The branch may have a norm of its own. Each pass reads the rows
// again.
//
// docs/norm_backward.md, "The branch", defines c1, c2, r, u, k and du. RMSNorm and LayerNorm share
// a kernel: without a mean it subtracts 0, which changes no bit.
//
// kBranchRows: computes c1 and c2 of x's row, then those of the branch's row, then the outputs.
// kBranchColumns: adds all sums over rows. It reads c1 and c2 of x's rows from the workspace.
#pragma once

#include "cuda/common/activation.cuh"
#include "cuda/norm_backward/general.cuh"

namespace fastnorm::cuda {

__device__ __forceinline__ Statistics statistics_or_zero(const BackwardTensor& mean,
                                                         const BackwardTensor& rstd,
                                                         const RowIndex& index) {
  return {mean.data == nullptr ? 0.0f : ptx::ld_global_f32(row_address(mean, index)),
          ptx::ld_global_f32(row_address(rstd, index))};
}

template <int kCount>
__device__ __forceinline__ void normalize(float (&v)[kCount], const Statistics& s, int count) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = i < count ? normalized<Stat::kLayer>(v[i], s) : 0.0f;
}

// A row of x in vectors as those of T, which is of x's dtype or of that of a branch whose sums are
// wanted.
template <class T, Dtype kDtype>
struct MainRow {
  __device__ __forceinline__ MainRow(const NormBackwardParams& params, const RowIndex& index)
      : p(params),
        x(row_address(p.x, index), kDtype),
        weight(row_or_none<T>(p.weight, index)),
        residual_in(row_or_none<T>(p.dresidual_in, index)),
        dy(p, index),
        statistics(statistics_or_zero(p.mean, p.rstd, index)),
        scale(p.branch.sum_scale == nullptr ? 1.0f : ptx::ld_global_f32(p.branch.sum_scale)) {}

  const NormBackwardParams& p;
  const DtypeRow<T> x, weight, residual_in;
  const GradientRow<T> dy;
  const Statistics statistics;
  const float scale;
};

// One vector of a MainRow.
template <class T>
struct MainVector {
  static constexpr int kCount = T::kPerVector;

  template <Dtype kDtype>
  __device__ __forceinline__ MainVector(const MainRow<T, kDtype>& row, int64_t number)
      : vector(number), count(elements_of<kCount>(row.p, number)) {
    float gain[kCount];
    load_values(xhat, row.x, vector, count);
    row.dy.take(dy, vector, count);
    load_gain<T>(gain, row.p, row.weight, vector, count);
    normalize(xhat, row.statistics, count);
#pragma unroll
    for (int i = 0; i < kCount; ++i) e[i] = __fmul_rn(dy[i], gain[i]);
  }

  // Sets r = dh * sum_scale; 0 behind the last column.
  template <Dtype kDtype>
  __device__ __forceinline__ void take_gradient(float (&r)[kCount], const MainRow<T, kDtype>& row,
                                                const float (&c)[2]) const {
    float added[kCount];
    const bool adds = row.residual_in.data != nullptr;
    if (adds) load_values(added, row.residual_in, vector, count);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float m = centred<Stat::kLayer>(xhat[i], e[i], c);
      const float dh =
          adds ? __fmaf_rn(m, row.statistics.rstd, added[i]) : __fmul_rn(m, row.statistics.rstd);
      r[i] = i < count ? __fmul_rn(dh, row.scale) : 0.0f;
    }
  }

  const int64_t vector;
  const int count;
  float xhat[kCount], dy[kCount],
      e[kCount];  // e = dy * (weight + weight_offset)
};

// A row of the branch, of its weight and bias, and of the residual gate.
template <class T>
struct BranchRow {
  static constexpr int kCount = T::kPerVector;

  __device__ __forceinline__ BranchRow(const NormBackwardParams& params, const RowIndex& index)
      : p(params),
        b(params.branch),
        normalizes((p.bits & kBackwardBranchNorm) != 0),
        branch(row_or_none<T>(b.branch, index)),
        weight(row_or_none<T>(b.weight, index)),
        bias(row_or_none<T>(b.bias, index)),
        gate(row_or_none<T>(b.residual_gate, index)),
        statistics{0.0f, 0.0f} {
    if (normalizes) statistics = statistics_or_zero(b.mean, b.rstd, index);
  }

  // Turns r into du = r * k.
  __device__ __forceinline__ void multiply_by_gate(float (&r)[kCount], int64_t vector,
                                                   int count) const {
    float k[kCount];
    if (gate.data != nullptr) {
      load_values(k, gate, vector, count);
      activate(k, b.act);
#pragma unroll
      for (float& value : k) value = __fmul_rn(value, b.alpha);
    } else {
      fill_values(k, b.alpha);
    }
    multiply(r, k);
  }

  // The branch, normalised where it has a norm.
  __device__ __forceinline__ void take(float (&v)[kCount], int64_t vector, int count) const {
    load_values(v, branch, vector, count);
    if (normalizes) normalize(v, statistics, count);
  }

  __device__ __forceinline__ void take_gain(float (&gain)[kCount], int64_t vector,
                                            int count) const {
    load_factors(gain, weight, vector, count,
                 [&](float g) { return gain_of(g, b.weight_offset, p, kBackwardBranchRoundGain); });
  }

  // Turns u from the normalised branch, already rounded, into the branch's result. Without a norm u
  // stays as it is.
  __device__ __forceinline__ void make_result(float (&u)[kCount], int64_t vector, int count) const {
    if (!normalizes) return;
    float gain[kCount];
    take_gain(gain, vector, count);
    apply_gain(u, gain, bias, vector, count);
    round_if(u, p, kBackwardBranchRoundResult);
  }

  const NormBackwardParams& p;
  const BackwardBranch& b;
  const bool normalizes;
  const DtypeRow<T> branch, weight, bias, gate;
  Statistics statistics;
};

// c1 and c2 of the branch's row. T: of the dtype whose vectors the branch has.
template <class T, Dtype kDtype, class Tile, class Scratch>
__device__ __forceinline__ void means_of_branch(float (&c)[2], const NormBackwardParams& p,
                                                const RowIndex& index, const float (&c_of_x)[2],
                                                Scratch& scratch, const Place<Tile>& place) {
  constexpr int kCount = T::kPerVector;
  const MainRow<T, kDtype> row(p, index);
  const BranchRow<T> of(p, index);
  means_of_row<Tile>(c, (p.n + kCount - 1) / kCount, p, scratch, place,
                     [&](int64_t number, float(&sum)[2]) {
                       const MainVector<T> v(row, number);
                       float e[kCount], xhat[kCount], gain[kCount];
                       v.take_gradient(e, row, c_of_x);
                       of.multiply_by_gate(e, v.vector, v.count);
                       of.take_gain(gain, v.vector, v.count);
                       multiply(e, gain);
                       of.take(xhat, v.vector, v.count);
                       sum[0] = vector_dot(e, xhat);
                       sum[1] = vector_sum(e);
                     });
  if (p.branch.mean.data == nullptr) c[1] = 0.0f;
}

template <Dtype kDtype, int kThreads>
__device__ __forceinline__ void gradient_of_branch_rows(const NormBackwardParams& p) {
  using Tile = RowTileOf<ForwardSlots<kDtype, Stat::kRms, kThreads>>;
  using T = Element<kDtype>;
  constexpr int kCount = T::kPerVector;
  struct ScratchOfX : RowScratch<Tile, 2, false> {};
  struct ScratchOfBranch : RowScratch<Tile, 2, false> {};
  const Place<Tile> place(blockIdx.x);
  const bool live = place.row < p.rows;
  const RowIndex index = backward_index(p, live ? place.row : 0);
  follow_stream((p.bits & kBackwardTrigger) != 0);

  const MainRow<T, kDtype> row(p, index);
  float c[2] = {0.0f, 0.0f};
  if ((p.bits & kBackwardKeptMeans) != 0) {
    const char* const kept = row_address(p.branch.means, index);
    c[0] = ptx::ld_global_f32(kept), c[1] = ptx::ld_global_f32(kept + sizeof(float));
  } else {
    means_of_row<Tile>(c, p.vectors, p, ptx::block_shared<ScratchOfX>(), place,
                       [&](int64_t number, float(&sum)[2]) {
                         const MainVector<T> v(row, number);
                         sum[0] = vector_dot(v.e, v.xhat);
                         sum[1] = vector_sum(v.e);
                       });
    if (p.mean.data == nullptr) c[1] = 0.0f;
  }
  if ((p.bits & kBackwardStatisticsOnly) != 0) {
    if (live && place.leads_row()) {
      char* const kept = row_address(p.branch.means, index);
      ptx::st_global_u32(kept, __float_as_uint(c[0]));
      ptx::st_global_u32(kept + sizeof(float), __float_as_uint(c[1]));
    }
    return;
  }

  const BranchRow<T> of(p, index);
  const DtypeRow<T> dx(row_or_none<T>(p.dx, index)), dresidual(row_or_none<T>(p.dresidual, index)),
      dbranch(row_or_none<T>(p.branch.dbranch, index));
  const bool centres = of.normalizes && dbranch.data != nullptr;
  float c_of_branch[2] = {0.0f, 0.0f};
  if (centres) {
    auto& scratch = ptx::block_shared<ScratchOfBranch>();
    if (p.dtype == Dtype::kF32) {
      means_of_branch<Element<Dtype::kF32>, kDtype>(c_of_branch, p, index, c, scratch, place);
    } else {
      means_of_branch<Element<Dtype::kF16>, kDtype>(c_of_branch, p, index, c, scratch, place);
    }
  }
  if (!live) return;

#pragma unroll 1
  for (int64_t number = place.first; number < p.vectors; number += Tile::kStride) {
    const MainVector<T> v(row, number);
    float r[kCount], d[kCount];
    v.take_gradient(r, row, c);
    copy_values(d, r);
    of.multiply_by_gate(d, v.vector, v.count);
    if (centres) {
      float xhat[kCount], gain[kCount];
      of.take(xhat, v.vector, v.count);
      of.take_gain(gain, v.vector, v.count);
      multiply(d, gain);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        d[i] = __fmul_rn(centred<Stat::kLayer>(xhat[i], d[i], c_of_branch), of.statistics.rstd);
      }
    }
    if (dx.data != nullptr) store_values(r, dx, v.vector, v.count);
    if (dresidual.data != nullptr) store_values(r, dresidual, v.vector, v.count);
    if (dbranch.data != nullptr) store_values(d, dbranch, v.vector, v.count);
  }
}

template <Dtype kDtype, int kThreads>
__device__ __forceinline__ void sums_of_branch_columns(const NormBackwardParams& p) {
  using T = Element<kDtype>;
  constexpr int kCount = T::kPerVector;
  const ColumnPlace<kDtype, kThreads> at(p);
  const bool keeps_means = p.branch.means.data != nullptr;
  const auto add_row = [&](float(&sums)[kBackwardSums][kCount], uint32_t number) {
    const RowIndex index = backward_index(p, number);
    const MainRow<T, kDtype> row(p, index);
    MainVector<T> v(row, at.vector);
    float r[kCount], u[kCount] = {};
    if (keeps_means) {
      const BranchRow<T> of(p, index);
      const char* const kept = row_address(p.branch.means, index);
      const float c[2] = {ptx::ld_global_f32(kept), ptx::ld_global_f32(kept + sizeof(float))};
      v.take_gradient(r, row, c);
      float du[kCount];
      copy_values(du, r);
      of.multiply_by_gate(du, v.vector, v.count);
      if (of.branch.data != nullptr) of.take(u, v.vector, v.count);
      if (of.normalizes) round_if(u, p, kBackwardBranchRoundNormalized);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sums[2][i] = __fmaf_rn(du[i], u[i], sums[2][i]);
        sums[3][i] = __fadd_rn(sums[3][i], du[i]);
      }
      if (p.branch.dresidual_gate.data != nullptr) of.make_result(u, v.vector, v.count);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[4][i] = __fmaf_rn(r[i], u[i], sums[4][i]);
    }
    round_if(v.xhat, p, kBackwardRoundNormalized);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sums[0][i] = __fmaf_rn(v.dy[i], v.xhat[i], sums[0][i]);
      sums[1][i] = __fadd_rn(sums[1][i], v.dy[i]);
    }
  };
  ptx::grid_wait();
  if ((p.bits & kBackwardTrigger) != 0) ptx::grid_trigger();
  for (uint32_t group = blockIdx.y; group < p.groups; group += gridDim.y) {
    float sums[kBackwardSums][kCount] = {};
    // Row numbers stay below 2^31 + step.
#pragma unroll 1
    for (uint32_t row = at.block * p.lanes + at.lane; row < p.shared_rows; row += p.step)
      add_row(sums, group * p.shared_rows + row);
    at.store_partial_sums(p, group, sums);
  }
}

}  // namespace fastnorm::cuda
