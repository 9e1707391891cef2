// From the descriptions and the plan of a norm_heads_backward call to what each launch gets.
// CUDA-free.
#pragma once

#include "core/norm_heads_backward_plan.h"
#include "cuda/norm_heads_backward/params.h"

namespace fastnorm::cuda {

// One of them, by the form of the step's kernel.
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

}  // namespace fastnorm::cuda
