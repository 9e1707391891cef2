// Many aligned rows: a thread block (or cluster) has lanes of one block of the row order, and goes
// over their rows. The gradient of a gate after the norm is stored before the row's sums are
// folded: it needs none.
//
// Registers: the sums of this thread's columns, its gains (weight + offset), and the current row's
// xhat and dy * gain. lane_rows.cuh says how rows come.
//
// Bytes: each row of an input once, each of an output once. The sums of each thread block once;
// fold.cuh reads them.
#pragma once

#include "cuda/norm_backward/lane_rows.cuh"

namespace fastnorm::cuda {

template <class S, bool kLean>
__device__ __forceinline__ void gradient_in_turn(const NormBackwardParams& p) {
  constexpr int kVectors = S::kVectors, kPerVector = S::kPerVector;
  auto& scratch = ptx::block_shared<StepScratch<S, S::kSums, 2>>();
  begin_steps(scratch);
  const LanePlace<S> place(p);
  ptx::grid_wait();
  LaneRows<S, kLean> rows(p, place);
  float gain[kVectors][kPerVector];
  load_gains<S, kLean>(gain, p, rows.at.group, place);
  WeightSums<S> sums;
  const bool wants_dgate = S::kGate && p.dgate.data != nullptr;

  rows.for_each([&](const StepRow& row, auto& feed) {
    float x[kVectors][kPerVector], e[kVectors][kPerVector], q[S::kSums][kVectors], c[S::kSums];
    uint4 add[kVectors];
    [[maybe_unused]] char* const dgate = S::kGate ? rows.address(kRowOther, row.row) : nullptr;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float d[kPerVector];
      if constexpr (S::kGate) {
        const uint4 of_gate =
            make_gated_factors<S, kLean>(x[v], e[v], d, feed, v, gain[v], row.statistics, p);
        if (row.live && place.has(v) && wants_dgate)
          ptx::st_global_v4(dgate + v * S::kVectorStep, of_gate);
      } else {
        make_factors<S>(x[v], e[v], d, feed.take(kRowX, v), feed.take(kRowDy, v), gain[v],
                        row.statistics);
      }
      if constexpr (S::kResidual) add[v] = feed.take(kRowAdd, v);
      if (row.live) sums.template add<kLean>(v, d, x[v], p);
      vector_sums<S>(q, v, x[v], e[v], place.has(v));
    }
    fold_step<S>(c, q, scratch, row.step, place, p);
    char* const dx = rows.address(kRowDx, row.row);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float f[kPerVector];
      gradient_vector<S>(f, x[v], e[v], add[v], c, row.statistics.rstd);
      const uint4 result = S::T::pack(f);
      if (row.live && place.has(v)) ptx::st_global_v4(dx + v * S::kVectorStep, result);
    }
  });
  sums.store(p, rows.at.partial_row(p), place);
  end_steps<S>();
}

}  // namespace fastnorm::cuda
