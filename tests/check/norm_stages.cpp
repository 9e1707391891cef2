#include "check/norm_stages.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/norm_check.h"
#include "core/norm_plan.h"
#include "support/norm_stages_call.h"

namespace fastnorm::check {
namespace {

using support::CallTensor;
using support::RandomStagesCall;

// Runs a call on a device that reads its memory. Returns "", or what is wrong.
std::string run_stages_on(Device& device, RandomStagesCall& call) {
  const DeviceFacts& facts = device.facts;
  NormDesc desc;
  NormPlan plan;
  Error error;
  if (check_norm(&call.args(), {facts.device_type, facts.device_id}, &desc, error) != FASTNORM_OK)
    return std::string("refused: ") + error.text;
  if (make_plan(desc, facts, device.norm_table(), &plan, error) != FASTNORM_OK)
    return std::string("not planned: ") + error.text;
  const NormCall planned = {&desc, &plan};
  if (plan.entry != nullptr &&
      device.run_norm({&planned, 1}, nullptr, nullptr, error) != FASTNORM_OK)
    return std::string("failed: ") + error.text;
  const std::string finding = call.difference();
  return finding.empty() || plan.entry == nullptr ? finding
                                                  : std::string(plan.entry->name) + ": " + finding;
}

std::string run_stages(RandomStagesCall& call, Target& target) {
  call.expect_results();
  std::vector<std::vector<unsigned char>> before;
  for (const CallTensor* t : call.tensors()) before.push_back(t->now);
  for (const std::unique_ptr<Device>& device : target.devices) {
    size_t i = 0;
    for (CallTensor* t : call.tensors()) t->now = before[i++];
    const std::string finding = run_stages_on(*device, call);
    if (!finding.empty()) return finding;
  }
  return "";
}

// The comparison must be able to fail: some of these calls differ if sums have another order.
bool stages_tell_orders(Target& target) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStagesCall call(seed, ref::Order::kCpuLowestFirst);
    if (!run_stages(call, target).empty()) return true;
  }
  return false;
}

void report_stages(bool passed, const Target& target, const char* what, Counts* counts) {
  passed ? ++counts->passed : ++counts->failed;
  if (!passed) std::printf("FAIL %s norm_stages: %s\n", target.name.c_str(), what);
}

}  // namespace

void check_norm_stages(Target& target, const Options& options, Counts* counts) {
  constexpr const char* kFamily = "norm_stages";
  if (target.cuda) return;  // no kernels there in this version
  if (!options.wants(kFamily) && options.filter.find(kFamily) == std::string::npos) return;
  const uint64_t seeds = options.reduced ? 300 : 3000;
  int64_t cases = 0, bounded = 0;
  for (uint64_t seed = 0; seed < seeds; seed += static_cast<uint64_t>(options.every)) {
    RandomStagesCall call(seed, target.order);
    if (!options.wants(call.text())) continue;
    const std::string finding = run_stages(call, target);
    ++cases;
    bounded += call.bounded() != 0 ? 1 : 0;
    finding.empty() ? ++counts->passed : ++counts->failed;
    if (!finding.empty())
      std::printf("FAIL %s %s: %s\n", target.name.c_str(), call.text().c_str(), finding.c_str());
  }
  if (cases == 0) return;
  report_stages(stages_tell_orders(target), target, "a wrong order does not show", counts);
  if (cases >= 100) report_stages(bounded * 8 >= cases, target, "few calls have bounds", counts);
  std::printf("%s: %lld cases of norm_stages, %lld of them with bounds\n", target.name.c_str(),
              static_cast<long long>(cases), static_cast<long long>(bounded));
}

}  // namespace fastnorm::check
