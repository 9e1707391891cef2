// From a described and planned norm_heads call to its launch and what the kernel gets. CUDA-free.
#pragma once

#include "core/common/pdl.h"
#include "core/norm_heads/plan.h"
#include "cuda/launch.h"
#include "cuda/norm_heads/params.h"

namespace fastnorm::cuda {

// What rotates the heads of so many tokens; no slots.
HeadsShared make_heads_shared(const RopeTables& tables, int64_t tokens);

// The rows (token, head) of a part's y or codes.
HeadsTensor heads_tensor(const RowTensor& tensor, const NormHeadsDesc& desc,
                         const NormHeadsPart& part);

// The parameters of a general kernel.
NormHeadsParams make_norm_heads_params(const NormHeadsDesc& desc, const NormHeadsPlan& plan);

// The parameters of a kernel of kIndexer, and of the others that hold rows.
IndexerParams make_indexer_params(const NormHeadsDesc& desc, const NormHeadsPlan& plan);
HeldHeadsParams make_held_heads_params(const NormHeadsDesc& desc, const NormHeadsPlan& plan);

struct NormHeadsFamily;

// The one launch of a call, for launches.h. The family needs no workspace, which is the `void*`.
template <typename Use>
fastnorm_status for_each_launch(const NormHeadsCall& call, const ArchSpec& arch, void*, Use use) {
  const NormHeadsDesc& desc = *call.desc;
  const NormHeadsPlan& plan = *call.plan;
  const NormHeadsVariant& variant = plan.entry->variant;
  Launch<NormHeadsFamily> launch = {plan.index, {}};
  launch.shape.blocks_x = static_cast<uint32_t>(plan.blocks);
  launch.shape.threads = static_cast<uint32_t>(variant.block_threads());
  launch.shape.early = (desc.pdl & kPdlWait) != 0 && arch.launches_early();
  if (variant.is_indexer()) return use(launch, [&] { return make_indexer_params(desc, plan); });
  if (variant.is_held()) return use(launch, [&] { return make_held_heads_params(desc, plan); });
  return use(launch, [&] { return make_norm_heads_params(desc, plan); });
}

}  // namespace fastnorm::cuda
