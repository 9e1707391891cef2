#include "core/norm_backward_plan.h"

#include "core/check.h"

namespace fastnorm {

fastnorm_status plan_norm_backward(const NormBackwardDesc&, const DeviceFacts&,
                                   std::span<const NormBackwardEntry>, NormBackwardPlan*,
                                   Error& error) {
  return error.set(FASTNORM_ERROR_UNSUPPORTED,
                   "this build has no norm_backward for the device; nearest: the CPU");
}

}  // namespace fastnorm
