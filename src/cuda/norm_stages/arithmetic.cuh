// The stages around a norm, on elements in registers. What is known of a call is the same for all
// threads, so its branches are, too.
#pragma once

#include "cuda/common/activation.cuh"
#include "cuda/common/normalize.cuh"
#include "cuda/common/statistics.cuh"
#include "cuda/norm/affine.cuh"
#include "cuda/norm_stages/params.h"

namespace fastnorm::cuda {

// u * act(gate). kTanh: act may be tanh.
template <bool kTanh = true, int kCount, class R>
__device__ __forceinline__ void multiply_by_gate(float (&u)[kCount], const float (&gate)[kCount],
                                                 StageFunction function, const R& rounding) {
  float factor[kCount];
  copy_values(factor, gate);
  activate<kTanh>(factor, function);
#pragma unroll
  for (int i = 0; i < kCount; ++i) u[i] = rounding.step(__fmul_rn(u[i], rounding.step(factor[i])));
}

// (u * k + residual) * sum_scale, in place, as a call's bits say. k[i] is factor(i).
template <class T, int kCount, class Factor>
__device__ __forceinline__ void add_residual(float (&u)[kCount], const float (&residual)[kCount],
                                             uint32_t bits, const Factor& factor, bool scales,
                                             float sum_scale) {
  const Steps<T> rounding = {(bits & kStagesSumEveryStep) != 0};
  const bool scaled = (bits & (kStagesScaled | kStagesFactor)) != 0,
             adds = (bits & kStagesResidual) != 0, fused = scaled && adds && !rounding.every_step;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (fused) {
      u[i] = __fmaf_rn(u[i], factor(i), residual[i]);
    } else {
      if (scaled) u[i] = rounding.step(__fmul_rn(u[i], factor(i)));
      if (adds) u[i] = rounding.step(__fadd_rn(u[i], residual[i]));
    }
    if (scales) u[i] = rounding.step(__fmul_rn(u[i], sum_scale));
  }
}

// The branch's factor from a residual gate: act(k) * alpha, in place.
template <class T, int kCount>
__device__ __forceinline__ void make_factor(float (&k)[kCount], uint32_t bits, StageFunction act,
                                            float alpha) {
  const Steps<T> rounding = {(bits & kStagesSumEveryStep) != 0};
  const bool scaled = (bits & kStagesScaled) != 0;
  activate(k, act);
#pragma unroll
  for (float& f : k) {
    if (act != StageFunction::kIdentity) f = rounding.step(f);
    if (scaled) f = rounding.step(__fmul_rn(f, alpha));
  }
}

// z * (1 + scale) + shift, in place.
template <class T, int kCount>
__device__ __forceinline__ void modulate(float (&z)[kCount], const float (&scale)[kCount],
                                         const float (&shift)[kCount], uint32_t bits) {
  const bool scales = (bits & kStagesScale) != 0, shifts = (bits & kStagesShift) != 0,
             plain = (bits & kStagesPlainScale) != 0;
  const Steps<T> rounding = {(bits & kStagesModulateInSteps) != 0};
  const bool fused = scales && shifts && !rounding.every_step;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float k = plain ? scale[i] : rounding.step(__fadd_rn(1.0f, scale[i]));
    if (fused) {
      z[i] = __fmaf_rn(z[i], k, shift[i]);
    } else {
      z[i] = rounding.step(z[i]);
      if (scales) z[i] = rounding.step(__fmul_rn(z[i], k));
      if (shifts) z[i] = rounding.step(__fadd_rn(z[i], shift[i]));
    }
  }
}

// Where a modulator's row begins. An index outside its rows selects the nearest one, so that
// nothing else is read.
__device__ __forceinline__ char* modulator_row(const StageModulator& m, const StageTensor& numbers,
                                               uint32_t bits, const RowIndex& index) {
  char* const row = row_address(m.rows.row, m.rows.upper, index);
  if (numbers.row.data == nullptr) return row;
  const char* const at = row_address(numbers.row, numbers.upper, index);
  int64_t number = static_cast<int32_t>(ptx::ld_global_u32(at));
  if ((bits & kStagesWideIndex) != 0)
    number = static_cast<int64_t>(uint64_t{ptx::ld_global_u32(at + 4)} << 32 |
                                  static_cast<uint32_t>(number));
  number = number < 0 ? 0 : number > m.last_row ? m.last_row : number;
  return row + number * m.index_stride;
}

// The values of a vector's columns that a row's source needs.
template <class T>
struct StageValues {
  static constexpr int kCount = T::kPerVector;
  float x[kCount], gate[kCount], residual[kCount];
  float weight[kCount], bias[kCount];  // of the branch
  float factor[kCount];                // of the branch, by make_factor()
};

// What a row's source stages need beside the values.
template <class T>
struct StageSource {
  using R = Rounding<Affine::kAny, T>;

  __device__ __forceinline__ StageSource(const NormStagesParams& params, float factor)
      : p(params),
        bits(params.bits),
        rounding(params.norm),
        branch(params.branch),
        sum_scale(factor) {}

  static constexpr int kCount = T::kPerVector;

  // The branch before its norm: x, gated where the gate comes first.
  __device__ __forceinline__ void gated(float (&u)[kCount], const StageValues<T>& v) const {
    copy_values(u, v.x);
    if ((bits & kStagesGateBefore) != 0) multiply_by_gate(u, v.gate, p.gate_act, rounding);
  }

  // The row that is normalised, from gated().
  __device__ __forceinline__ void sum(float (&u)[kCount], const StageValues<T>& v) const {
    if ((bits & kStagesBranch) != 0) {
#pragma unroll
      for (float& value : u)
        value = normalized_value(value, mean, rstd, (bits & kStagesBranchLayer) != 0, branch);
      branch.normalized(u);
      apply(u, u, v.weight, v.bias, p.branch.weight_offset, rstd, branch);
      if ((bits & kStagesBranchRounded) != 0) round_to<T>(u);
    }
    const bool varies = (bits & kStagesFactor) != 0;
    const auto factor = [&](int i) { return varies ? v.factor[i] : p.alpha; };
    add_residual<T>(u, v.residual, bits, factor, p.sum_scale != nullptr, sum_scale);
  }

  // What follows weight, bias and modulation.
  __device__ __forceinline__ void finish(float (&z)[kCount], const StageValues<T>& v) const {
    if ((bits & (kStagesGate | kStagesGateBefore)) == kStagesGate) {
      if ((bits & kStagesGateRounded) != 0) round_to<T>(z);
      multiply_by_gate(z, v.gate, p.gate_act, rounding);
    }
    if (p.activation == StageFunction::kIdentity) return;
    activate(z, p.activation);
#pragma unroll
    for (float& value : z) value = rounding.step(value);
  }

  const NormStagesParams& p;
  const uint32_t bits;
  const R rounding, branch;  // of the two norms
  const float sum_scale;
  float mean = 0.0f, rstd = 0.0f;  // of the branch
};

}  // namespace fastnorm::cuda
