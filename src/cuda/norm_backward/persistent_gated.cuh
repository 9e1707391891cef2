// The persistent form of calls with a gate before the norm. The gate's function's values and slopes
// wait in shared memory until the row's sums are known.
#pragma once

#include "cuda/norm_backward/lane_rows.cuh"

namespace fastnorm::cuda {

// What a gate before the norm keeps of a step, behind the ring: [vector][part][thread]. Each thread
// reads its own values alone.
template <class S>
struct KeptGate {
  static constexpr int kPerPart = kVectorBytes / static_cast<int>(sizeof(float));
  static constexpr int kPartsOfOne = S::kPerVector / kPerPart, kParts = 2 * kPartsOfOne;

  static __device__ __forceinline__ char* slot(int v, int part) {
    return ptx::launch_shared() + S::kV.ring_bytes() + threadIdx.x * kVectorBytes +
           (v * kParts + part) * S::kBlockThreads * kVectorBytes;
  }
  static __device__ __forceinline__ void put(int v, int first_part,
                                             const float (&f)[S::kPerVector]) {
#pragma unroll
    for (int i = 0; i < S::kPerVector; i += kPerPart) {
      ptx::st_shared_v4(slot(v, first_part + i / kPerPart), as_words(f + i));
    }
  }
  static __device__ __forceinline__ void take(int v, int first_part, float (&f)[S::kPerVector]) {
#pragma unroll
    for (int i = 0; i < S::kPerVector; i += kPerPart) {
      const uint4 raw = ptx::ld_shared_v4(slot(v, first_part + i / kPerPart));
      as_floats(f + i, raw);
    }
  }
};

template <class S, bool kLean>
__device__ __forceinline__ void gradient_of_gate_before(const NormBackwardParams& p) {
  constexpr int kVectors = S::kVectors, kPerVector = S::kPerVector;
  using Kept = KeptGate<S>;
  constexpr int kFactor = 0, kSlope = Kept::kPartsOfOne;
  auto& scratch = ptx::block_shared<StepScratch<S, S::kSums, 2>>();
  const LanePlace<S> place(p);
  ptx::grid_wait();
  LaneRows<S, kLean> rows(p, place);
  float gain[kVectors][kPerVector];
  load_gains<S, kLean>(gain, p, rows.at.group, place);
  WeightSums<S> sums;
  const bool wants_dgate = p.dgate.data != nullptr;

  rows.for_each([&](const StepRow& row, auto& feed) {
    float e[kVectors][kPerVector], q[S::kSums][kVectors], c[S::kSums];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float factor[kPerVector], slope[kPerVector], x[kPerVector], d[kPerVector];
      gate_function<S, kLean>(factor, slope, feed.take(kRowGate, v), p);
      round_gated<S, kLean>(factor, p);
      Kept::put(v, kFactor, factor), Kept::put(v, kSlope, slope);
      S::T::unpack(feed.take(kRowX, v), x);
      S::T::unpack(feed.take(kRowDy, v), d);
      normalize_gated<S, kLean>(x, factor, row.statistics, p);
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) e[v][i] = __fmul_rn(d[i], gain[v][i]);
      if (row.live) sums.template add<kLean>(v, d, x, p);
      vector_sums<S>(q, v, x, e[v], place.has(v));
    }
    fold_step<S>(c, q, scratch, row.step, place, p);
    char *const dx = rows.address(kRowDx, row.row), *const dgate = rows.address(kRowOther, row.row);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float factor[kPerVector], of_gate[kPerVector], x[kPerVector], f[kPerVector];
      Kept::take(v, kFactor, factor), Kept::take(v, kSlope, of_gate);
      // x again, from what was loaded: to hold it in registers takes more of them.
      S::T::unpack(feed.take(kRowX, v), x);
      normalize_gated<S, kLean>(x, factor, row.statistics, p);
      gradient_vector<S>(f, x, e[v], {}, c, row.statistics.rstd);
      S::T::unpack(feed.take(kRowX, v), x);
      multiply(x, f);
      multiply(of_gate, x);
      multiply(f, factor);
      if (!row.live || !place.has(v)) continue;
      if (wants_dgate) ptx::st_global_v4(dgate + v * S::kVectorStep, S::T::pack(of_gate));
      ptx::st_global_v4(dx + v * S::kVectorStep, S::T::pack(f));
    }
  });
  sums.store(p, rows.at.partial_row(p), place);
}

}  // namespace fastnorm::cuda
