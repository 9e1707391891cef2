// Calls of norm_backward.
#include <optional>
#include <vector>

#include "api/norm_backward_call.h"
#include "check/family.h"
#include "check/random_calls.h"
#include "support/norm_backward_case.h"

namespace fastnorm::check {
namespace {

using support::CheckedCall;
using support::NormBackwardCase;

class PlannedBackward final : public Planned {
 public:
  fastnorm_status plan(const CheckedCall& call, const Device& device, int32_t,
                       Error& error) override {
    batch_.emplace();
    return plan_norm_backward_one(backward_planner_of(device),
                                  &call.args<fastnorm_norm_backward_args>(), &*batch_, error);
  }
  uint64_t workspace_bytes() const override { return batch_->workspace_bytes; }
  fastnorm_status run(Device& device, std::byte* workspace, void* stream, Error& error) override {
    return device.run(batch_->planned(), workspace, stream, error);
  }
  std::string kernel() const override { return ""; }

 private:
  std::optional<NormBackwardBatch> batch_;
};

void check_gradients(std::span<Target* const> targets, const Options& options, Counts* counts) {
  RandomCalls calls("norm_backward", targets, options, counts);
  const bool gpu = targets[0]->cuda;
  // A call in which wrong orders show: those of sums along rows, and of sums over rows.
  NormBackwardCase telling;
  telling.batch = 200;
  telling.n = 1024;
  telling.has_dbias = true;
  telling.kind = ref::Kind::kLayer;
  telling.seed = 7;
  calls.run_line(telling.line(gpu));
  const std::vector<NormBackwardCase> all = support::make_norm_backward_cases(gpu, options.reduced);
  for (size_t i = options.first(all.size()); i < all.size();
       i += static_cast<size_t>(options.every))
    calls.run_line(all[i].line(gpu));
  if (calls.cases() == 0) return;
  for (const bool rows : {false, true}) {
    NormBackwardCase half = telling;
    half.has_dx = rows;
    half.has_dweight = half.has_dbias = !rows;
    calls.count_orders([&](uint64_t, bool on_gpu) { return half.line(on_gpu); });
  }
  calls.print();
}

}  // namespace

FamilyChecks norm_backward_checks() {
  return {"norm_backward", make_planned<PlannedBackward>, no_kernels, has_gradients,
          check_gradients};
}

}  // namespace fastnorm::check
