// The kernels of norm_heads on the SIMT machine: each of them, and what planning chooses, against the
// model byte for byte.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/norm_heads_check.h"
#include "cuda/norm_heads/table.h"
#include "simt/device.h"
#include "simt/machine.h"
#include "simt/spec.h"
#include "support/norm_heads_call.h"

namespace {

using namespace fastnorm;
using support::CallKind;
using support::RandomHeadsCall;

DeviceFacts facts() {
  DeviceFacts f;
  f.device_type = FASTNORM_DEVICE_CUDA;
  f.arch = &cuda::kSimt;
  f.multiprocessors = 132;
  return f;
}

constexpr simt::Order kOrders[] = {simt::Order::kForward, simt::Order::kBackward,
                                   simt::Order::kShuffled};

// Runs a random call on kernel `index`, or what planning chooses (-1). The kernel's name; "" if it
// cannot serve the call or there is nothing to do.
std::string run(uint64_t seed, CallKind kind, int32_t index) {
  RandomHeadsCall call(seed, ref::Order::kGpu, kind);
  for (support::CallTensor* t : call.tensors()) t->abi.device_type = FASTNORM_DEVICE_CUDA;
  NormHeadsDesc desc;
  NormHeadsPlan plan;
  Error error;
  const auto& parts = call.parts();
  EXPECT_EQ(check_norm_heads(&call.args(), parts.data(), static_cast<int32_t>(parts.size()),
                             {FASTNORM_DEVICE_CUDA, 0}, &desc, error),
            FASTNORM_OK)
      << call.text() << ": " << error.text;
  const auto table = cuda::norm_heads_table(cuda::kSimt);
  const fastnorm_status status =
      index < 0 ? plan_norm_heads(desc, facts(), table, &plan, error)
                : plan_norm_heads_for(desc, facts(), table, index, &plan, error);
  if (index >= 0 && status == FASTNORM_ERROR_UNSUPPORTED) return "";
  EXPECT_EQ(status, FASTNORM_OK) << call.text() << ": " << error.text;
  if (plan.launches == 0) {
    EXPECT_EQ(call.difference(), "") << call.text();
    return "";
  }
  EXPECT_EQ(simt::run_norm_heads(desc, plan, kOrders[seed % std::size(kOrders)]), "")
      << call.text();
  EXPECT_EQ(call.difference(), "") << plan.kernel << " " << call.text();
  return plan.kernel;
}

TEST(SimtNormHeads, RandomCallsEqualTheModel) {
  for (uint64_t seed = 0; seed < 400 && !HasFailure(); ++seed) run(seed, CallKind::kAny, -1);
}

TEST(SimtNormHeads, AlignedCallsEqualTheModel) {
  for (uint64_t seed = 0; seed < 400 && !HasFailure(); ++seed) run(seed, CallKind::kAligned, -1);
}

// Each kernel, with several calls that it can serve.
TEST(SimtNormHeads, EveryKernelEqualsTheModel) {
  constexpr int kCalls = 12;
  const auto table = cuda::norm_heads_table(cuda::kSimt);
  for (size_t i = 0; i < table.size() && !HasFailure(); ++i) {
    int calls = 0;
    for (uint64_t seed = 1000; seed < 6000 && calls < kCalls && !HasFailure(); ++seed) {
      const std::string kernel = run(seed, CallKind::kAligned, static_cast<int32_t>(i));
      if (kernel.empty()) continue;
      EXPECT_EQ(kernel, table[i].name);
      ++calls;
    }
    EXPECT_EQ(calls, kCalls) << table[i].name << " serves too few of the calls";
  }
}

}  // namespace
