#include "check/norm_heads.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "check/far_call.h"
#include "check/placed_call.h"
#include "core/norm_heads_check.h"
#include "support/norm_heads_call.h"

namespace fastnorm::check {
namespace {

using support::CallKind;
using support::RandomHeadsCall;

constexpr int32_t kChosen = -1;  // the kernel that planning chooses

using Placed = PlacedCall<RandomHeadsCall>;
using FarPlaced = FarCall<RandomHeadsCall>;

// Describes a call for a device.
fastnorm_status describe(RandomHeadsCall& call, const DeviceFacts& facts, NormHeadsDesc* desc,
                         Error& error) {
  const auto& parts = call.parts();
  return check_norm_heads(&call.args(), parts.data(), static_cast<int32_t>(parts.size()),
                          {facts.device_type, facts.device_id}, desc, error);
}

// Whether a kernel can run a call.
template <class Place = Placed>
bool can_run(RandomHeadsCall& call, Target& target, int32_t kernel) {
  const Place placed(call, target);
  const Device& device = *target.devices[0];
  NormHeadsDesc desc;
  NormHeadsPlan plan;
  Error error;
  return describe(call, device.facts, &desc, error) == FASTNORM_OK &&
         plan_norm_heads_for(desc, device.facts, device.norm_heads_table(), kernel, &plan, error) ==
             FASTNORM_OK;
}

// Returns "", or what is wrong.
template <class Place = Placed>
std::string run(RandomHeadsCall& call, Target& target, int32_t kernel) {
  call.expect_results();
  Place placed(call, target);
  for (const std::unique_ptr<Device>& device : target.devices) {
    NormHeadsDesc desc;
    NormHeadsPlan plan;
    Error error;
    if (describe(call, device->facts, &desc, error) != FASTNORM_OK)
      return std::string("refused: ") + error.text;
    const auto table = device->norm_heads_table();
    const fastnorm_status status =
        kernel == kChosen ? plan_norm_heads(desc, device->facts, table, &plan, error)
                          : plan_norm_heads_for(desc, device->facts, table, kernel, &plan, error);
    if (status != FASTNORM_OK) return std::string("not planned: ") + error.text;
    placed.upload();
    if (plan.launches != 0 && device->run_norm_heads(desc, plan, nullptr, error) != FASTNORM_OK)
      return std::string("failed: ") + error.text;
    const std::string finding = placed.examine();
    if (!finding.empty()) return std::string(plan.kernel) + ": " + finding;
  }
  return "";
}

// The comparison must be able to fail: some of these calls differ if sums have another order.
bool heads_tell_orders(Target& target) {
  const ref::Order wrong =
      target.order == ref::Order::kCpu ? ref::Order::kCpuLowestFirst : ref::Order::kGpuLowestFirst;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomHeadsCall call(seed, wrong);
    if (!run(call, target, kChosen).empty()) return true;
  }
  return false;
}

class Checks {
 public:
  Checks(Target& target, const Options& options, Counts* counts)
      : target_(target), options_(options), counts_(*counts) {}

  void run_chosen(CallKind kind, uint64_t count) {
    const auto every = static_cast<uint64_t>(options_.every);
    for (uint64_t seed = 0; seed < count; seed += every) {
      RandomHeadsCall call(seed, target_.order, kind);
      if (options_.wants(call.text())) check(call, kChosen);
    }
  }

  // Runs each kernel of a GPU `most` times.
  void run_each(int most) {
    constexpr uint64_t kFirst = 100000, kSeeds = 20000;
    const size_t kernels = target_.devices[0]->norm_heads_table().size();
    std::vector<int> left(kernels, most);
    for (uint64_t seed = kFirst; seed < kFirst + kSeeds; ++seed) {
      RandomHeadsCall call(seed, target_.order,
                           seed % 4 == 0   ? CallKind::kAcross
                           : seed % 8 == 1 ? CallKind::kLatents
                                           : CallKind::kAligned);
      if (!options_.wants(call.text())) continue;
      bool all = true;
      for (size_t i = 0; i < kernels; ++i) {
        if (left[i] == 0) continue;
        all = false;
        if (!can_run(call, target_, static_cast<int32_t>(i))) continue;
        check(call, static_cast<int32_t>(i));
        --left[i];
        break;  // the call's memory now has its results
      }
      if (all) break;
    }
    for (size_t i = 0; i < kernels; ++i) {
      if (left[i] == most) ++never_;
    }
  }

  // Rows, or those of tables at positions from a million on, lie so far apart that their offsets
  // exceed 2^31 elements. Each kernel that can. Memory of a GPU is needed in full.
  void run_far(uint64_t seeds) {
    constexpr size_t kMostBytes = 24000000000;
    try {
      target_.memory->block(kMostBytes);
    } catch (const std::exception& e) {
      ++counts_.skipped;
      std::printf("SKIP %s norm_heads far apart: %s\n", target_.name.c_str(), e.what());
      return;
    }
    const auto kernels = static_cast<int32_t>(target_.devices[0]->norm_heads_table().size());
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      for (const bool tables : {false, true}) {
        if (!options_.wants(far_call(seed, tables)->text())) continue;
        for (int32_t kernel = kChosen; kernel < kernels; ++kernel) {
          const auto call = far_call(seed, tables);
          if (kernel == kChosen || can_run<FarPlaced>(*call, target_, kernel))
            report(*call, run<FarPlaced>(*call, target_, kernel));
        }
      }
    }
    target_.memory->release();
  }

  int64_t cases() const { return cases_; }
  int64_t never() const { return never_; }  // kernels that no call ran on

 private:
  std::unique_ptr<RandomHeadsCall> far_call(uint64_t seed, bool tables) const {
    constexpr int64_t kMillion = 1000000, kFar = (int64_t{1} << 30) + 16, kFarOfTables = 2160;
    static_assert(2 * kFar > INT32_MAX && kMillion * kFarOfTables > INT32_MAX);
    auto call = std::make_unique<RandomHeadsCall>(seed, target_.order, CallKind::kFew);
    if (tables) {
      call->spread_tables(kMillion, kFarOfTables);
    } else {
      call->spread_rows(kFar);
    }
    return call;
  }

  void check(RandomHeadsCall& call, int32_t kernel) { report(call, run(call, target_, kernel)); }

  void report(RandomHeadsCall& call, const std::string& finding) {
    ++cases_;
    finding.empty() ? ++counts_.passed : ++counts_.failed;
    if (!finding.empty())
      std::printf("FAIL %s %s: %s\n", target_.name.c_str(), call.text().c_str(), finding.c_str());
  }

  Target& target_;
  const Options& options_;
  Counts& counts_;
  int64_t cases_ = 0, never_ = 0;
};

}  // namespace

void check_norm_heads(Target& target, const Options& options, Counts* counts) {
  // A call's text begins so. That of norm_heads_backward does not.
  constexpr const char* kFamily = "norm_heads ";
  if (!options.wants(kFamily) && options.filter.find(kFamily) == std::string::npos) return;
  Checks checks(target, options, counts);
  checks.run_chosen(CallKind::kAny, options.reduced ? 200 : 1500);
  checks.run_chosen(CallKind::kAligned, options.reduced ? 100 : 1500);
  checks.run_chosen(CallKind::kMore, options.reduced ? 100 : 500);
  checks.run_chosen(CallKind::kAcross, options.reduced ? 60 : 500);
  checks.run_chosen(CallKind::kLatents, options.reduced ? 100 : 1000);
  checks.run_chosen(CallKind::kMany, options.reduced ? 2 : 40);
  checks.run_chosen(CallKind::kLarge, options.reduced ? 1 : 10);
  checks.run_far(options.reduced ? 4 : 16);
  if (options.every == 1) checks.run_each(options.reduced ? 2 : 20);
  if (checks.cases() == 0) return;
  const bool tells = heads_tell_orders(target);
  tells ? ++counts->passed : ++counts->failed;
  if (!tells) std::printf("FAIL %s norm_heads: a wrong order does not show\n", target.name.c_str());
  std::printf("%s: %lld cases of norm_heads", target.name.c_str(),
              static_cast<long long>(checks.cases()));
  if (checks.never() != 0)
    std::printf(", %lld kernels never ran", static_cast<long long>(checks.never()));
  std::printf("\n");
}

}  // namespace fastnorm::check
