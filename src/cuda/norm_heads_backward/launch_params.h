// From the descriptions and the plan of a norm_heads_backward call to what each launch gets.
// CUDA-free.
#pragma once

#include "core/norm_heads_backward_plan.h"
#include "cuda/norm_heads_backward/params.h"

namespace fastnorm::cuda {

// One of them, as visit_heads_backward_params() says.
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

// Calls `use` with what the step's kernel, of `variant`, gets.
template <typename Use>
auto visit_heads_backward_params(const HeadsGradients& call, const NormHeadsBackwardPlan& plan,
                                 const HeadsBackwardStep& step,
                                 const NormHeadsBackwardVariant& variant, void* workspace,
                                 Use use) {
  if (variant.has_held_params())
    return use(make_held_heads_backward_params(call, plan, step, workspace));
  if (variant.form == HeadsBackwardForm::kFold)
    return use(make_heads_fold_params(call, plan, step, workspace));
  return use(make_heads_backward_params(call, plan, step, workspace));
}

}  // namespace fastnorm::cuda
