// The backward kernels of a kind and a dtype of x, for one instruction set.
#pragma once

#include "cpu/norm_backward/branch-inl.h"
#include "cpu/norm_backward/kernel-inl.h"

namespace fastnorm::cpu {
namespace {

template <class H, Stat kStat>
void rows_kernel(const NormBackwardParams& p, int64_t begin, int64_t end) {
  if (p.branch.present) return branch_rows<H>(p, begin, end);
  if (p.gated) return backward_rows<AnySlots<H, true>>(p, begin, end);
  if constexpr (!kGeneralOnly) {
    if (p.plain) return backward_rows<PlainSlots<H, kStat>>(p, begin, end);
  }
  backward_rows<AnySlots<H, false>>(p, begin, end);
}

template <class H, Stat kStat>
void blocks_kernel(const NormBackwardParams& p, int64_t begin, int64_t end) {
  if (p.branch.present) return branch_blocks<H>(p, begin, end);
  if (p.gated) return backward_blocks<AnySlots<H, true>>(p, begin, end);
  if constexpr (!kGeneralOnly) {
    if (p.plain) return backward_blocks<PlainSlots<H, kStat>>(p, begin, end);
  }
  backward_blocks<AnySlots<H, false>>(p, begin, end);
}

template <class H, Stat kStat>
constexpr NormBackwardKernel backward_kernel() {
  return {rows_kernel<H, kStat>, blocks_kernel<H, kStat>, fold_blocks_range<H>};
}

constexpr NormBackwardKernels backward_kernels() {
  constexpr Stat kRms = Stat::kRms, kLayer = Stat::kLayer;
  return {
      {{backward_kernel<F32, kRms>(), backward_kernel<F16, kRms>(), backward_kernel<BF16, kRms>()},
       {backward_kernel<F32, kLayer>(), backward_kernel<F16, kLayer>(),
        backward_kernel<BF16, kLayer>()}}};
}

}  // namespace
}  // namespace fastnorm::cpu
