// The kernels of norm_backward: one function, whose word says which.
#pragma once

#include "cuda/norm_backward/branch.cuh"
#include "cuda/norm_backward/few.cuh"
#include "cuda/norm_backward/fold.cuh"
#include "cuda/norm_backward/gated.cuh"
#include "cuda/norm_backward/general.cuh"
#include "cuda/norm_backward/persistent.cuh"

namespace fastnorm::cuda {

// nvcc compiles this file for the host, too, which needs the kernels' names alone.
#if defined(__CUDACC__) && !defined(__CUDA_ARCH__)
inline constexpr bool kHasBackwardBodies = false;
#else
inline constexpr bool kHasBackwardBodies = true;
#endif

template <int kArch, uint64_t kWord>
__global__ void __launch_bounds__(backward_variant_of(kWord).block_threads(),
                                  backward_variant_of(kWord).blocks_per_sm)
    norm_backward_kernel(const __grid_constant__ NormBackwardParams p) {
  constexpr NormBackwardVariant kV = backward_variant_of(kWord);
  if constexpr (!kHasBackwardBodies) {
  } else if constexpr (kV.form == BackwardForm::kFold) {
    fold_blocks_of_rows<kV.threads>(p);
  } else if constexpr (kV.form == BackwardForm::kColumns) {
    sums_of_columns<kV.dtype, kV.stat, kV.threads>(p);
  } else if constexpr (kV.form == BackwardForm::kRows) {
    gradient_of_rows<kV.dtype, kV.stat, kV.threads>(p);
  } else if constexpr (kV.form == BackwardForm::kGatedColumns) {
    sums_of_gated_columns<kV.dtype, kV.threads>(p);
  } else if constexpr (kV.form == BackwardForm::kGatedRows) {
    if ((p.bits & kBackwardLayer) != 0) {
      gradient_of_gated_rows<kV.dtype, Stat::kLayer, kV.threads>(p);
    } else {
      gradient_of_gated_rows<kV.dtype, Stat::kRms, kV.threads>(p);
    }
  } else if constexpr (kV.form == BackwardForm::kBranchColumns) {
    sums_of_branch_columns<kV.dtype, kV.threads>(p);
  } else if constexpr (kV.form == BackwardForm::kBranchRows) {
    gradient_of_branch_rows<kV.dtype, kV.threads>(p);
  } else if constexpr (kV.form == BackwardForm::kPersistent) {
    using S = BackwardSlots<kWord>;
    // The same for all threads. Where the gate is decides what a step holds in registers.
    if (S::kGate && (p.bits & kBackwardGateBefore) != 0) {
      gradient_in_turn<S, S::kGate>(p);
    } else {
      gradient_in_turn<S>(p);
    }
  } else {
    gradient_at_once<BackwardSlots<kWord>>(p);
  }
}

}  // namespace fastnorm::cuda
