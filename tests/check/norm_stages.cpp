// Calls of norm with stages. A line may be any call of norm.
#include <vector>

#include "check/family.h"
#include "check/random_calls.h"
#include "core/common/pdl.h"
#include "core/norm/check.h"
#include "core/norm/plan.h"
#include "core/norm/stages.h"
#include "support/norm_stages_call.h"

namespace fastnorm::check {
namespace {

using support::CheckedCall;
using support::StagesKind;

class PlannedNorm final : public Planned {
 public:
  fastnorm_status plan(const CheckedCall& call, const Device& device, int32_t kernel,
                       Error& error) override {
    const DeviceFacts& facts = device.facts;
    const fastnorm_status status = check_norm(&call.args<fastnorm_norm_args>(),
                                              {facts.device_type, facts.device_id}, &desc_, error);
    if (status != FASTNORM_OK) return status;
    desc_.flags = with_pdl(desc_.flags, facts.pdl);
    return kernel == kChosen ? make_plan(desc_, facts, device.table<NormEntry>(), &plan_, error)
                             : plan_stages_for(desc_, facts, kernel, &plan_, error);
  }
  fastnorm_status run(Device& device, std::byte*, void* stream, Error& error) override {
    const NormCall call = {&desc_, &plan_};
    return plan_.entry == nullptr ? FASTNORM_OK
                                  : device.run(std::span(&call, 1), nullptr, stream, error);
  }
  std::string kernel() const override { return plan_.entry == nullptr ? "" : plan_.entry->name; }

 private:
  NormDesc desc_;
  NormPlan plan_;
};

std::vector<std::string> stages_kernels(const Target& target) {
  std::vector<std::string> names;
  if (!target.cuda) return names;
  const StagesKernelList& list = *target.devices[0]->facts.arch->stages;
  for (int32_t i = 0; i < list.count; ++i) names.emplace_back(list.entries[i].name);
  return names;
}

RandomCalls::Draw stages(StagesKind kind) {
  return [kind](uint64_t seed, bool gpu) { return support::draw_norm_stages(seed, kind, gpu); };
}

void check_stages(std::span<Target* const> targets, const Options& options, Counts* counts) {
  RandomCalls calls("norm_stages", targets, options, counts);
  if (!calls.wanted()) return;
  const bool few = options.reduced;
  calls.run(few ? 300 : 3000, stages(StagesKind::kAny));
  for (const StagesKind kind :
       {StagesKind::kAligned, StagesKind::kGated, StagesKind::kSandwich, StagesKind::kModulated,
        StagesKind::kScaled, StagesKind::kMixed, StagesKind::kRotated})
    calls.run(targets[0]->cuda && !few ? 1000 : 40, stages(kind));
  if (options.each) {
    calls.run_each(few ? 2 : 20, [](uint64_t seed, bool gpu) {
      return support::draw_norm_stages(seed, static_cast<StagesKind>(seed % support::kStagesKinds),
                                       gpu);
    });
  }
  if (calls.cases() == 0) return;
  calls.count_orders(stages(StagesKind::kAny));
  for (const Target* target : targets) {
    if (calls.cases() >= 100)
      calls.count(*target, calls.bounded() * 8 >= calls.cases(), "few calls have bounds");
    if (options.each && options.every == 1 && options.filter.empty())
      calls.count(*target, calls.never() == 0, "a kernel ran no call");
  }
  calls.print();
}

}  // namespace

FamilyChecks norm_stages_checks() {
  return {"norm", make_planned<PlannedNorm>, stages_kernels, runs_everywhere, check_stages};
}

}  // namespace fastnorm::check
