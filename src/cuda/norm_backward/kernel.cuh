// The kernels of norm_backward: one function, whose word says which.
#pragma once

#include "cuda/common/bodies.cuh"
#include "cuda/norm_backward/branch.cuh"
#include "cuda/norm_backward/few.cuh"
#include "cuda/norm_backward/fold.cuh"
#include "cuda/norm_backward/gated.cuh"
#include "cuda/norm_backward/general.cuh"
#include "cuda/norm_backward/persistent.cuh"
#include "cuda/norm_backward/persistent_branch.cuh"
#include "cuda/norm_backward/persistent_gated.cuh"

namespace fastnorm::cuda {

// A kernel that holds rows. kLean: the common call, whose rows are evenly strided, and which rounds
// nothing between steps.
template <class S, bool kLean>
__device__ __forceinline__ void gradient_of_held_rows(const NormBackwardParams& p) {
  if constexpr (S::kV.form == BackwardForm::kFew) {
    gradient_at_once<S, kLean>(p);
  } else if constexpr (S::kBranch) {
    gradient_of_branch_in_turn<S, kLean>(p);
  } else if (S::kGate && (p.bits & kBackwardGateBefore) != 0) {
    if constexpr (S::kGate) gradient_of_gate_before<S, kLean>(p);
  } else {
    gradient_in_turn<S, kLean>(p);
  }
}

template <int kArch, uint64_t kWord>
__global__ void __launch_bounds__(backward_variant_of(kWord).block_threads(),
                                  backward_variant_of(kWord).per_sm)
    norm_backward_kernel(const __grid_constant__ NormBackwardParams p) {
  constexpr NormBackwardVariant kV = backward_variant_of(kWord);
  if constexpr (!kHasBodies) {
  } else if constexpr (kV.form == BackwardForm::kFold) {
    fold_blocks_of_rows<kV.threads>(p);
  } else if constexpr (kV.form == BackwardForm::kColumns) {
    sums_of_columns<kV.dtype, kV.stat, kV.threads>(p);
  } else if constexpr (kV.form == BackwardForm::kRows) {
    gradient_of_rows<kV.dtype, kV.stat, kV.threads>(p);
  } else if constexpr (kV.form == BackwardForm::kGatedColumns) {
    sums_of_gated_columns<kV.dtype, kV.threads>(p);
  } else if constexpr (kV.form == BackwardForm::kGatedRows) {
    gradient_of_gated_rows<kV.dtype, kV.threads>(p);
  } else if constexpr (kV.form == BackwardForm::kBranchColumns) {
    sums_of_branch_columns<kV.dtype, kV.threads>(p);
  } else if constexpr (kV.form == BackwardForm::kBranchRows) {
    gradient_of_branch_rows<kV.dtype, kV.threads>(p);
  } else if ((p.bits & kBackwardLean) != 0) {
    gradient_of_held_rows<BackwardSlots<kWord>, true>(p);
  } else {
    gradient_of_held_rows<BackwardSlots<kWord>, false>(p);
  }
}

}  // namespace fastnorm::cuda
