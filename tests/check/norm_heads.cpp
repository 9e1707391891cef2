// Calls of norm_heads.
#include <cstdio>
#include <exception>

#include "check/family.h"
#include "check/random_calls.h"
#include "core/common/pdl.h"
#include "core/norm_heads/check.h"
#include "support/norm_heads_call.h"

namespace fastnorm::check {
namespace {

using support::CallKind;
using support::CheckedCall;

class PlannedHeads final : public Planned {
 public:
  fastnorm_status plan(const CheckedCall& call, const Device& device, int32_t kernel,
                       Error& error) override {
    const DeviceFacts& facts = device.facts;
    const fastnorm_status status = check_norm_heads(
        &call.args<fastnorm_norm_heads_args>(), call.parts<fastnorm_norm_heads_part>(),
        call.count(), {facts.device_type, facts.device_id}, &desc_, error);
    if (status != FASTNORM_OK) return status;
    desc_.pdl = with_pdl(desc_.pdl, facts.pdl);
    const auto table = device.table<NormHeadsEntry>();
    return kernel == kChosen ? plan_norm_heads(desc_, facts, table, &plan_, error)
                             : plan_norm_heads_for(desc_, facts, table, kernel, &plan_, error);
  }
  fastnorm_status run(Device& device, std::byte*, void* stream, Error& error) override {
    return plan_.launches == 0 ? FASTNORM_OK
                               : device.run(NormHeadsCall{&desc_, &plan_}, nullptr, stream, error);
  }
  std::string kernel() const override { return plan_.kernel; }

 private:
  NormHeadsDesc desc_;
  NormHeadsPlan plan_;
};

std::vector<std::string> heads_kernels(const Target& target) {
  std::vector<std::string> names;
  for (const NormHeadsEntry& entry : target.devices[0]->table<NormHeadsEntry>())
    names.emplace_back(entry.name);
  return names;
}

RandomCalls::Draw heads(CallKind kind) {
  return [kind](uint64_t seed, bool gpu) { return support::draw_norm_heads(seed, kind, gpu); };
}
// Offsets exceed 2^31 elements. Memory of a GPU is needed in full.
void run_far(RandomCalls& calls, std::span<Target* const> targets, uint64_t seeds, Counts* counts) {
  constexpr size_t kMostBytes = 24000000000;
  for (Target* target : targets) {
    try {
      target->memory->block(kMostBytes);
    } catch (const std::exception& e) {
      ++counts->skipped;
      std::printf("SKIP %s norm_heads far apart: %s\n", target->name.c_str(), e.what());
      return;
    }
  }
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    for (const CallKind kind : {CallKind::kFarRows, CallKind::kFarTables})
      calls.run_line(support::draw_norm_heads(seed, kind, targets[0]->cuda), true);
  }
  for (Target* target : targets) target->memory->release();
}

void check_heads(std::span<Target* const> targets, const Options& options, Counts* counts) {
  RandomCalls calls("norm_heads", targets, options, counts);
  if (!calls.wanted()) return;
  const bool few = options.reduced;
  calls.run(few ? 200 : 1500, heads(CallKind::kAny));
  calls.run(few ? 100 : 1500, heads(CallKind::kAligned));
  calls.run(few ? 100 : 500, heads(CallKind::kMore));
  calls.run(few ? 60 : 500, heads(CallKind::kAcross));
  calls.run(few ? 100 : 1000, heads(CallKind::kLatents));
  calls.run(few ? 100 : 500, heads(CallKind::kPrologue));
  calls.run(few ? 100 : 1000, heads(CallKind::kIndexer));
  calls.run(few ? 2 : 40, heads(CallKind::kMany));
  calls.run(few ? 1 : 10, heads(CallKind::kLarge));
  run_far(calls, targets, few ? 4 : 16, counts);
  if (options.each) {
    calls.run_each(few ? 2 : 20, [](uint64_t seed, bool gpu) {
      const CallKind kind = seed % 4 == 0   ? CallKind::kAcross
                            : seed % 8 == 1 ? CallKind::kLatents
                            : seed % 8 == 3 ? CallKind::kIndexer
                                            : CallKind::kAligned;
      return support::draw_norm_heads(seed, kind, gpu);
    });
  }
  if (calls.cases() == 0) return;
  calls.count_orders(heads(CallKind::kAny));
  calls.print();
}

}  // namespace

FamilyChecks norm_heads_checks() {
  return {"norm_heads", make_planned<PlannedHeads>, heads_kernels, runs_everywhere, check_heads};
}

}  // namespace fastnorm::check
