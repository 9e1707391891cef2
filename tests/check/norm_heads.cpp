#include "check/norm_heads.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/norm_heads_check.h"
#include "support/norm_heads_call.h"

namespace fastnorm::check {
namespace {

using support::CallKind;
using support::RandomHeadsCall;

constexpr int32_t kChosen = -1;  // the kernel that planning chooses

// All tensors of a call in the target's memory, with guards between them.
class Placed {
 public:
  Placed(RandomHeadsCall& call, Target& target) : call_(call), memory_(*target.memory) {
    constexpr size_t kGuard = 256;
    size_t bytes = kGuard;
    for (support::CallTensor* t : call.tensors()) {
      begin_.push_back(bytes);
      bytes += (t->now.size() + kGuard + 255) / 256 * 256;
    }
    before_.assign(bytes, 0xff);
    std::byte* const block = memory_.block(bytes);
    const DeviceFacts& facts = target.devices[0]->facts;
    size_t i = 0;
    for (support::CallTensor* t : call.tensors()) {
      std::memcpy(before_.data() + begin_[i], t->now.data(), t->now.size());
      t->elsewhere = block + begin_[i++];
      t->abi.device_type = facts.device_type;
      t->abi.device_id = facts.device_id;
    }
  }

  void upload() {
    memory_.upload(reinterpret_cast<const std::byte*>(before_.data()), before_.size());
  }

  // "" or what is wrong after a run.
  std::string examine() {
    std::vector<unsigned char> found(before_.size());
    memory_.download(reinterpret_cast<std::byte*>(found.data()), found.size());
    size_t i = 0, behind = 0;
    const auto guard_is_whole = [&](size_t end) {
      for (; behind < end; ++behind) {
        if (found[behind] != 0xff) return false;
      }
      return true;
    };
    for (support::CallTensor* t : call_.tensors()) {
      if (!guard_is_whole(begin_[i])) return "a byte between two tensors has changed";
      std::memcpy(t->now.data(), found.data() + begin_[i], t->now.size());
      behind = begin_[i++] + t->now.size();
    }
    return guard_is_whole(found.size()) ? call_.difference()
                                        : "a byte behind the tensors has changed";
  }

 private:
  RandomHeadsCall& call_;
  Memory& memory_;
  std::vector<size_t> begin_;  // of each tensor, in the block
  std::vector<unsigned char> before_;
};

// "" or what is wrong. `served`: whether the kernel can run the call.
std::string run(RandomHeadsCall& call, Target& target, int32_t kernel, bool* served) {
  Placed placed(call, target);
  *served = true;
  for (const std::unique_ptr<Device>& device : target.devices) {
    const DeviceFacts& facts = device->facts;
    NormHeadsDesc desc;
    NormHeadsPlan plan;
    Error error;
    const auto& parts = call.parts();
    if (check_norm_heads(&call.args(), parts.data(), static_cast<int32_t>(parts.size()),
                         {facts.device_type, facts.device_id}, &desc, error) != FASTNORM_OK)
      return std::string("refused: ") + error.text;
    const auto table = device->norm_heads_table();
    const fastnorm_status status =
        kernel == kChosen ? plan_norm_heads(desc, facts, table, &plan, error)
                          : plan_norm_heads_for(desc, facts, table, kernel, &plan, error);
    if (kernel != kChosen && status == FASTNORM_ERROR_UNSUPPORTED) {
      *served = false;
      return "";
    }
    if (status != FASTNORM_OK) return std::string("not planned: ") + error.text;
    placed.upload();
    if (plan.launches != 0 && device->run_norm_heads(desc, plan, nullptr, error) != FASTNORM_OK)
      return std::string("failed: ") + error.text;
    const std::string finding = placed.examine();
    if (!finding.empty()) return std::string(plan.kernel) + ": " + finding;
  }
  return "";
}

// The comparison must be able to fail: sums in another order differ in some of these calls.
bool tells_orders(Target& target) {
  const ref::Order wrong =
      target.order == ref::Order::kCpu ? ref::Order::kCpuLowestFirst : ref::Order::kGpuLowestFirst;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomHeadsCall call(seed, wrong);
    bool served = false;
    if (!run(call, target, kChosen, &served).empty()) return true;
  }
  return false;
}

}  // namespace

void check_norm_heads(Target& target, const Options& options, Counts* counts) {
  constexpr const char* kFamily = "norm_heads";
  if (!options.wants(kFamily) && options.filter.find(kFamily) == std::string::npos) return;
  long long cases = 0;
  // False if the kernel cannot serve the call, or nobody asked for it.
  const auto check = [&](uint64_t seed, CallKind kind, int32_t kernel) {
    RandomHeadsCall call(seed, target.order, kind);
    if (!options.wants(call.text())) return false;
    bool served = false;
    const std::string finding = run(call, target, kernel, &served);
    if (!served) return false;
    ++cases;
    finding.empty() ? ++counts->passed : ++counts->failed;
    if (!finding.empty())
      std::printf("FAIL %s %s: %s\n", target.name.c_str(), call.text().c_str(), finding.c_str());
    return true;
  };
  const auto every = static_cast<uint64_t>(options.every);
  const uint64_t count = options.reduced ? 200 : 1500;
  for (uint64_t seed = 0; seed < count; seed += every) check(seed, CallKind::kAny, kChosen);
  for (uint64_t seed = 0; seed < count; seed += every) check(seed, CallKind::kAligned, kChosen);
  for (uint64_t seed = 0; seed < (options.reduced ? 2u : 40u); seed += every)
    check(seed, CallKind::kMany, kChosen);
  // Each kernel of a GPU.
  const size_t kernels = target.devices[0]->norm_heads_table().size();
  for (size_t i = 0; i < kernels; ++i) {
    int left = options.reduced ? 3 : 20;
    for (uint64_t seed = count; seed < count + 5000 && left > 0; ++seed)
      left -= check(seed, CallKind::kAligned, static_cast<int32_t>(i)) ? 1 : 0;
  }
  if (cases == 0) return;
  const bool tells = tells_orders(target);
  tells ? ++counts->passed : ++counts->failed;
  if (!tells) std::printf("FAIL %s norm_heads: a wrong order does not show\n", target.name.c_str());
  std::printf("%s: %lld cases of norm_heads\n", target.name.c_str(), cases);
}

}  // namespace fastnorm::check
