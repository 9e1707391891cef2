#include "check/norm_stages.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "check/placed_call.h"
#include "core/norm_check.h"
#include "core/norm_plan.h"
#include "core/norm_stages.h"
#include "support/norm_stages_call.h"

namespace fastnorm::check {
namespace {

using support::RandomStagesCall;
using support::StagesKind;

constexpr int32_t kPlanned = -1;  // the kernel that planning chooses

using PlacedStages = PlacedCall<RandomStagesCall>;

// The kernels with stages of a GPU.
int32_t kernels_of(const Target& target) {
  return target.cuda ? target.devices[0]->facts.arch->stages->count : 0;
}

fastnorm_status plan_call(const NormDesc& desc, const Device& device, int32_t kernel,
                          NormPlan* plan, Error& error) {
  if (kernel == kPlanned) return make_plan(desc, device.facts, device.norm_table(), plan, error);
  return plan_stages_for(desc, device.facts, kernel, plan, error);
}

// Whether a kernel can run a call.
bool can_run(RandomStagesCall& call, Target& target, int32_t kernel) {
  const PlacedStages placed(call, target);
  const Device& device = *target.devices[0];
  NormDesc desc;
  NormPlan plan;
  Error error;
  return check_norm(&call.args(), {device.facts.device_type, device.facts.device_id}, &desc,
                    error) == FASTNORM_OK &&
         plan_call(desc, device, kernel, &plan, error) == FASTNORM_OK;
}

// "" or what is wrong.
std::string run_stages(RandomStagesCall& call, Target& target, int32_t kernel) {
  call.expect_results();
  PlacedStages placed(call, target);
  for (const std::unique_ptr<Device>& device : target.devices) {
    const DeviceFacts& facts = device->facts;
    NormDesc desc;
    NormPlan plan;
    Error error;
    if (check_norm(&call.args(), {facts.device_type, facts.device_id}, &desc, error) != FASTNORM_OK)
      return std::string("refused: ") + error.text;
    if (plan_call(desc, *device, kernel, &plan, error) != FASTNORM_OK)
      return std::string("not planned: ") + error.text;
    placed.upload();
    const NormCall planned = {&desc, &plan};
    if (plan.entry != nullptr &&
        device->run_norm({&planned, 1}, nullptr, nullptr, error) != FASTNORM_OK)
      return std::string("failed: ") + error.text;
    const std::string finding = placed.examine();
    if (!finding.empty())
      return std::string(plan.entry == nullptr ? "no rows" : plan.entry->name) + ": " + finding;
  }
  return "";
}

// The comparison must be able to fail: some of these calls differ if sums have another order.
bool stages_tell_orders(Target& target) {
  const ref::Order wrong =
      target.order == ref::Order::kCpu ? ref::Order::kCpuLowestFirst : ref::Order::kGpuLowestFirst;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStagesCall call(seed, wrong, StagesKind::kAny);
    if (!run_stages(call, target, kPlanned).empty()) return true;
  }
  return false;
}

void report_stages(bool passed, const Target& target, const char* what, Counts* counts) {
  passed ? ++counts->passed : ++counts->failed;
  if (!passed) std::printf("FAIL %s norm_stages: %s\n", target.name.c_str(), what);
}

class StagesChecks {
 public:
  StagesChecks(Target& target, const Options& options, Counts* counts)
      : target_(target), options_(options), counts_(*counts) {}

  void run_chosen(StagesKind kind, uint64_t seeds) {
    for (uint64_t seed = 0; seed < seeds; seed += static_cast<uint64_t>(options_.every)) {
      RandomStagesCall call(seed, target_.order, kind);
      if (options_.wants(call.text())) check(call, kPlanned);
    }
  }

  // Each kernel of a GPU, `most` times.
  void run_each(int most) {
    constexpr uint64_t kFirst = 100000, kSeeds = 20000;
    std::vector<int> left(static_cast<size_t>(kernels_of(target_)), most);
    for (uint64_t seed = kFirst; seed < kFirst + kSeeds; ++seed) {
      if (std::all_of(left.begin(), left.end(), [](int count) { return count == 0; })) break;
      RandomStagesCall call(seed, target_.order,
                            static_cast<StagesKind>(seed % support::kStagesKinds));
      if (!options_.wants(call.text())) continue;
      for (size_t i = 0; i < left.size(); ++i) {
        if (left[i] == 0 || !can_run(call, target_, static_cast<int32_t>(i))) continue;
        check(call, static_cast<int32_t>(i));
        --left[i];
        break;  // the call's memory has its results
      }
    }
    for (const int count : left) never_ += count == most ? 1 : 0;
  }

  int64_t cases() const { return cases_; }
  int64_t bounded() const { return bounded_; }
  int64_t never() const { return never_; }  // kernels that no call ran on

 private:
  void check(RandomStagesCall& call, int32_t kernel) {
    const std::string finding = run_stages(call, target_, kernel);
    ++cases_;
    bounded_ += call.bounded() != 0 ? 1 : 0;
    finding.empty() ? ++counts_.passed : ++counts_.failed;
    if (!finding.empty())
      std::printf("FAIL %s %s: %s\n", target_.name.c_str(), call.text().c_str(), finding.c_str());
  }

  Target& target_;
  const Options& options_;
  Counts& counts_;
  int64_t cases_ = 0, bounded_ = 0, never_ = 0;
};

}  // namespace

void check_norm_stages(Target& target, const Options& options, Counts* counts) {
  constexpr const char* kFamily = "norm_stages";
  if (!options.wants(kFamily) && options.filter.find(kFamily) == std::string::npos) return;
  StagesChecks checks(target, options, counts);
  checks.run_chosen(StagesKind::kAny, options.reduced ? 300 : 3000);
  for (const StagesKind kind : {StagesKind::kAligned, StagesKind::kGated, StagesKind::kSandwich,
                                StagesKind::kModulated, StagesKind::kScaled, StagesKind::kMixed})
    checks.run_chosen(kind, target.cuda && !options.reduced ? 1000 : 40);
  if (options.every == 1) checks.run_each(options.reduced ? 2 : 20);
  if (checks.cases() == 0) return;
  report_stages(stages_tell_orders(target), target, "a wrong order does not show", counts);
  if (checks.cases() >= 100)
    report_stages(checks.bounded() * 8 >= checks.cases(), target, "few calls have bounds", counts);
  if (options.every == 1 && options.filter.empty())
    report_stages(checks.never() == 0, target, "a kernel ran no call", counts);
  std::printf("%s: %lld cases of norm_stages, %lld of them with bounds\n", target.name.c_str(),
              static_cast<long long>(checks.cases()), static_cast<long long>(checks.bounded()));
}

}  // namespace fastnorm::check
