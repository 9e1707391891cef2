// From the descriptions and the plan of a norm_heads_backward call to its launches and what each
// kernel gets. CUDA-free.
#pragma once

#include "core/common/check.h"
#include "core/norm_heads_backward/plan.h"
#include "cuda/launch.h"
#include "cuda/norm_heads_backward/params.h"

namespace fastnorm::cuda {

// Which one a kernel gets depends on its form.
NormHeadsBackwardParams make_heads_backward_params(const HeadsGradients& call,
                                                   const NormHeadsBackwardPlan& plan,
                                                   const HeadsBackwardStep& step, void* workspace);
HeldHeadsBackwardParams make_held_heads_backward_params(const HeadsGradients& call,
                                                        const NormHeadsBackwardPlan& plan,
                                                        const HeadsBackwardStep& step,
                                                        void* workspace);
HeadsFoldParams make_heads_fold_params(const HeadsGradients& call,
                                       const NormHeadsBackwardPlan& plan,
                                       const HeadsBackwardStep& step, void* workspace);

struct NormHeadsBackwardFamily;

template <typename Use>
fastnorm_status for_each_launch(const NormHeadsBackwardCall& call, const ArchSpec&, void* workspace,
                                Use use) {
  const NormHeadsBackwardPlan& plan = *call.plan;
  for (const HeadsBackwardStep& step : plan.planned()) {
    Launch<NormHeadsBackwardFamily> launch = {step.index, {}};
    launch.shape.blocks_x = step.blocks;
    launch.shape.threads = static_cast<uint32_t>(step.variant->block_threads());
    launch.shape.shared_bytes = static_cast<uint32_t>(step.shared_bytes);
    launch.shape.early = step.early;
    const auto with = [&](auto make) {
      return use(launch, [&] { return make(*call.gradients, plan, step, workspace); });
    };
    FASTNORM_TRY(step.variant->has_held_params() ? with(make_held_heads_backward_params)
                 : step.variant->form == HeadsBackwardForm::kFold
                     ? with(make_heads_fold_params)
                     : with(make_heads_backward_params));
  }
  return FASTNORM_OK;
}

}  // namespace fastnorm::cuda
