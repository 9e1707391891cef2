// From a described and planned backward pass to its launches and what each kernel gets. CUDA-free.
#pragma once

#include <span>

#include "core/common/check.h"
#include "core/norm_backward/plan.h"
#include "cuda/launch.h"
#include "cuda/norm_backward/params.h"

namespace fastnorm::cuda {

// The forward call whose statistics are computed again, without the extents and strides of its
// rows. `dtype`: that of x.
NormDesc forward_of(const NormBackwardDesc& desc, Dtype dtype);

// The parameters of one launch.
NormBackwardParams make_step_params(const NormBackwardDesc& desc, const NormBackwardPlan& plan,
                                    const NormBackwardStep& step, void* workspace);

struct NormBackwardFamily;

template <typename Use>
fastnorm_status for_each_launch(std::span<const NormBackwardCall> calls, const ArchSpec&,
                                void* workspace, Use use) {
  for (const NormBackwardCall& call : calls) {
    for (const NormBackwardStep& step : call.plan.planned()) {
      Launch<NormBackwardFamily> launch = {step.index, {}};
      launch.shape.blocks_x = step.blocks_x, launch.shape.blocks_y = step.blocks_y;
      launch.shape.threads = static_cast<uint32_t>(step.variant->block_threads());
      launch.shape.shared_bytes = static_cast<uint32_t>(step.shared_bytes);
      launch.shape.cluster = static_cast<uint32_t>(step.variant->blocks);
      launch.shape.early = step.early;
      FASTNORM_TRY(use(launch, [&] {
        return make_step_params(call.desc, call.plan, step, call.own(workspace));
      }));
    }
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm::cuda
