#include "check/norm_heads_backward.h"

#include <cstdio>
#include <memory>
#include <string>

#include "check/placed_call.h"
#include "core/norm_backward_batch.h"
#include "support/norm_heads_backward_call.h"

namespace fastnorm::check {
namespace {

using support::GradientCallKind;
using support::RandomHeadsBackwardCall;

fastnorm_status plan(RandomHeadsBackwardCall& call, const Device& device, NormBackwardBatch* batch,
                     Error& error) {
  const auto& parts = call.parts();
  return plan_norm_heads_backward(device, &call.args(), parts.data(),
                                  static_cast<int32_t>(parts.size()), batch, error);
}

// Returns "", or what is wrong.
std::string run(RandomHeadsBackwardCall& call, Target& target) {
  call.expect_results();
  if (!call.out_of_bounds().empty()) return "the model: " + call.out_of_bounds();
  uint64_t room = 0;
  {
    const PlacedCall alone(call, target);
    auto batch = std::make_unique<NormBackwardBatch>();
    Error error;
    if (plan(call, *target.devices[0], batch.get(), error) != FASTNORM_OK)
      return std::string("refused: ") + error.text;
    room = batch->workspace_bytes;
  }
  PlacedCall placed(call, target, room);
  for (const std::unique_ptr<Device>& device : target.devices) {
    auto batch = std::make_unique<NormBackwardBatch>();
    Error error;
    if (plan(call, *device, batch.get(), error) != FASTNORM_OK)
      return std::string("refused: ") + error.text;
    if (batch->workspace_bytes != room) return "devices need other workspaces";
    placed.upload();
    if (batch->together.launches != 0 &&
        device->run_norm_heads_backward(heads_gradients(*batch), batch->together,
                                        placed.workspace(), nullptr, error) != FASTNORM_OK)
      return std::string("failed: ") + error.text;
    for (const NormBackwardCall& part : batch->planned()) {
      if (batch->together.launches != 0) break;
      std::byte* const own = placed.workspace() + part.workspace_offset;
      if (device->run_norm_backward(part.desc, part.plan, own, nullptr, error) != FASTNORM_OK)
        return std::string("failed: ") + error.text;
    }
    const std::string finding = placed.examine();
    if (!finding.empty()) return finding;
  }
  return "";
}

// The comparison must be able to fail: some of these calls differ if sums have another order.
bool gradients_tell_orders(Target& target) {
  const ref::Order wrong =
      target.order == ref::Order::kCpu ? ref::Order::kCpuLowestFirst : ref::Order::kGpuLowestFirst;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomHeadsBackwardCall call(seed, wrong);
    if (!run(call, target).empty()) return true;
  }
  return false;
}

}  // namespace

void check_norm_heads_backward(Target& target, const Options& options, Counts* counts) {
  constexpr const char* kFamily = "norm_heads_backward";
  if (!options.wants(kFamily) && options.filter.find(kFamily) == std::string::npos) return;
  int64_t cases = 0;
  const auto check = [&](uint64_t count, GradientCallKind kind) {
    for (uint64_t seed = 0; seed < count; seed += static_cast<uint64_t>(options.every)) {
      RandomHeadsBackwardCall call(seed, target.order, kind);
      if (!options.wants(call.text())) continue;
      const std::string finding = run(call, target);
      ++cases;
      finding.empty() ? ++counts->passed : ++counts->failed;
      if (!finding.empty())
        std::printf("FAIL %s %s: %s\n", target.name.c_str(), call.text().c_str(), finding.c_str());
    }
  };
  check(options.reduced ? 150 : 1500, GradientCallKind::kAny);
  check(options.reduced ? 4 : 60, GradientCallKind::kMany);
  check(options.reduced ? 20 : 150, GradientCallKind::kPlain);
  check(options.reduced ? 40 : 400, GradientCallKind::kAligned);
  check(options.reduced ? 1 : 6, GradientCallKind::kAlignedMany);
  if (cases == 0) return;
  const bool tells = gradients_tell_orders(target);
  tells ? ++counts->passed : ++counts->failed;
  if (!tells)
    std::printf("FAIL %s %s: a wrong order does not show\n", target.name.c_str(), kFamily);
  std::printf("%s: %lld cases of %s\n", target.name.c_str(), static_cast<long long>(cases),
              kFamily);
}

}  // namespace fastnorm::check
