// Calls of norm_heads_backward.
#include <optional>

#include "api/norm_backward_call.h"
#include "check/family.h"
#include "check/random_calls.h"
#include "support/norm_heads_backward_call.h"

namespace fastnorm::check {
namespace {

using support::CheckedCall;
using support::GradientCallKind;

class PlannedHeadsBackward final : public Planned {
 public:
  fastnorm_status plan(const CheckedCall& call, const Device& device, int32_t,
                       Error& error) override {
    batch_.emplace();
    return plan_norm_heads_backward(
        backward_planner_of(device), &call.args<fastnorm_norm_heads_args>(),
        call.parts<fastnorm_norm_heads_backward_part>(), call.count(), &*batch_, error);
  }
  uint64_t workspace_bytes() const override { return batch_->workspace_bytes; }
  fastnorm_status run(Device& device, std::byte* workspace, void* stream, Error& error) override {
    return with_call(*batch_,
                     [&](const auto& call) { return device.run(call, workspace, stream, error); });
  }
  std::string kernel() const override {
    return batch_->together.launches != 0 ? batch_->together.kernel : "";
  }

 private:
  std::optional<NormBackwardBatch> batch_;
};

RandomCalls::Draw gradients(GradientCallKind kind) {
  return [kind](uint64_t seed, bool gpu) {
    return support::draw_norm_heads_backward(seed, kind, gpu);
  };
}

void check_head_gradients(std::span<Target* const> targets, const Options& options,
                          Counts* counts) {
  RandomCalls calls("norm_heads_backward", targets, options, counts);
  if (!calls.wanted()) return;
  const bool few = options.reduced;
  calls.run(few ? 150 : 1500, gradients(GradientCallKind::kAny));
  calls.run(few ? 4 : 60, gradients(GradientCallKind::kMany));
  calls.run(few ? 20 : 150, gradients(GradientCallKind::kPlain));
  calls.run(few ? 40 : 400, gradients(GradientCallKind::kAligned));
  calls.run(few ? 1 : 6, gradients(GradientCallKind::kAlignedMany));
  if (calls.cases() == 0) return;
  calls.count_orders(gradients(GradientCallKind::kAny));
  calls.print();
}

}  // namespace

FamilyChecks norm_heads_backward_checks() {
  return {"norm_heads_backward", make_planned<PlannedHeadsBackward>, no_kernels, has_gradients,
          check_head_gradients};
}

}  // namespace fastnorm::check
