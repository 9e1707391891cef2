// From a described and planned norm_heads call to what its kernel gets. CUDA-free.
#pragma once

#include "core/norm_heads_plan.h"
#include "cuda/norm_heads/params.h"

namespace fastnorm::cuda {

// What turns the heads of so many tokens; no slots.
HeadsShared make_heads_shared(const RopeTables& tables, int64_t tokens);

// The rows (token, head) of a part's y or codes.
HeadsTensor heads_tensor(const RowTensor& tensor, const NormHeadsDesc& desc,
                         const NormHeadsPart& part);

// Of a plan on a general kernel.
NormHeadsParams make_norm_heads_params(const NormHeadsDesc& desc, const NormHeadsPlan& plan);

// Of a plan on a held kernel.
HeldHeadsParams make_held_heads_params(const NormHeadsDesc& desc, const NormHeadsPlan& plan);

// Calls `use` with what the plan's kernel gets.
template <typename Use>
auto visit_heads_params(const NormHeadsDesc& desc, const NormHeadsPlan& plan, Use use) {
  if (plan.entry->variant.is_held()) return use(make_held_heads_params(desc, plan));
  return use(make_norm_heads_params(desc, plan));
}

}  // namespace fastnorm::cuda
