// The persistent form of calls with a branch. Of x's rows it does what persistent.cuh does. r is
// the gradient of what was added.
//
// A branch has factors and sums of columns of its own. If it has a norm, it has a row's sum, too.
// Its xhat and gradient then take the places of x's.
#pragma once

#include "cuda/norm_backward/branch.cuh"
#include "cuda/norm_backward/lane_rows.cuh"

namespace fastnorm::cuda {

// What multiplies r, or the gradient of the branch's norm: the columns of a parameter.
template <class S>
struct BranchFactors {
  __device__ __forceinline__ BranchFactors(const NormBackwardParams& p, uint32_t group_row,
                                           const LanePlace<S>& place) {
    if (p.branch.sum_scale != nullptr) sum_scale = ptx::ld_global_f32(p.branch.sum_scale);
    const BranchRow<typename S::T> row(p, backward_index(p, group_row));
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      const int vector = place.vector(v);
      const int count = place.has(v) ? S::kPerVector : 0;
      if constexpr (S::kBranchNorm) {
        row.take_gain(of[v], vector, count);
      } else {
        fill_values(of[v], 1.0f);
        row.multiply_by_gate(of[v], vector, count);
      }
    }
  }

  float of[S::kVectors][S::kPerVector], sum_scale = 1.0f;
};

template <class S, bool kLean>
__device__ __forceinline__ void gradient_of_branch_in_turn(const NormBackwardParams& p) {
  constexpr int kVectors = S::kVectors, kPerVector = S::kPerVector;
  constexpr bool kNorm = S::kBranchNorm;
  static_assert(!kNorm || S::kStat == Stat::kRms);
  auto& scratch = ptx::block_shared<StepScratch<S, S::kSums, 2>>();
  begin_steps(scratch);
  const LanePlace<S> place(p);
  ptx::grid_wait();
  LaneRows<S, kLean> rows(p, place);
  float gain[kVectors][kPerVector];
  load_gains<S, kLean>(gain, p, rows.at.group, place);
  const BranchFactors<S> factor(p, rows.at.group * p.shared_rows, place);
  WeightSums<S> sums;
  ColumnSums<S> of_branch;  // dbranch_weight, or dresidual_gate
  const bool adds = p.dresidual_in.data != nullptr;

  rows.for_each([&](const StepRow& row, auto& feed) {
    const float branch_rstd = kNorm ? feed.statistic(S::kStatistics - 1) : 0.0f;
    float x[kVectors][kPerVector], e[kVectors][kPerVector], q[S::kSums][kVectors], c[S::kSums];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float d[kPerVector];
      make_factors<S>(x[v], e[v], d, feed.take(kRowX, v), feed.take(kRowDy, v), gain[v],
                      row.statistics);
      if (row.live) sums.template add<kLean>(v, d, x[v], p);
      vector_sums<S>(q, v, x[v], e[v], place.has(v));
    }
    // A branch's norm folds a second time in a step, by the other set.
    if constexpr (kNorm) {
      fold_step_of_set<S>(c, q, scratch, 0, row.step, place, p);
    } else {
      fold_step<S>(c, q, scratch, row.step, place, p);
    }
    char *const dx = rows.address(kRowDx, row.row), *const dbranch =
                                                        rows.address(kRowOther, row.row);
    const auto put = [&](char* to, int v, const float(&f)[kPerVector]) {
      if (row.live && place.has(v)) ptx::st_global_v4(to + v * S::kVectorStep, S::T::pack(f));
    };
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float r[kPerVector];
      gradient_vector<S>(r, x[v], e[v], feed.take(kRowAdd, v), c, row.statistics.rstd, adds);
#pragma unroll
      for (float& value : r) value = __fmul_rn(value, factor.sum_scale);
      put(dx, v, r);
      if constexpr (kNorm) {
        // From here on x and e are the branch's.
        float d[kPerVector];
        make_branch_factors<S>(x[v], e[v], d, r, feed.take(kRowBranch, v), factor.of[v],
                               branch_rstd, p);
        add_row<S, kLean>(of_branch.of[v], d, d, x[v], p, kBackwardBranchRoundNormalized);
        vector_sums<S>(q, v, x[v], e[v], place.has(v));
      } else {
        float u[kPerVector];
        S::T::unpack(feed.take(kRowBranch, v), u);
#pragma unroll
        for (int i = 0; i < kPerVector; ++i) {
          of_branch.of[v][i] = __fmaf_rn(r[i], u[i], of_branch.of[v][i]);
          r[i] = __fmul_rn(r[i], factor.of[v][i]);
        }
        put(dbranch, v, r);
      }
    }
    if constexpr (kNorm) {
      fold_step_of_set<S>(c, q, scratch, 1, row.step, place, p);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float f[kPerVector];
#pragma unroll
        for (int i = 0; i < kPerVector; ++i)
          f[i] = __fmul_rn(centred<Stat::kRms>(x[v][i], e[v][i], c), branch_rstd);
        put(dbranch, v, f);
      }
    }
  });
  const int64_t partial_row = rows.at.partial_row(p);
  sums.store(p, partial_row, place);
  const BackwardTensor& out = kNorm ? p.branch.dweight : p.branch.dresidual_gate;
  if (out.data != nullptr) of_branch.store(p.partial[kNorm ? 2 : 4] + partial_row, place, p);
  end_steps<S>();
}

}  // namespace fastnorm::cuda
