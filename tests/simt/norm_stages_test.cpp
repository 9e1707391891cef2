// Norm calls with stages on the SIMT machine: each kernel, and what planning chooses, against the
// model byte for byte, whose results are compared with double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/common/pdl.h"
#include "core/norm/check.h"
#include "cuda/families.h"
#include "cuda/gpu_device.h"
#include "simt/device.h"
#include "simt/machine.h"
#include "simt/spec.h"
#include "support/checked_call.h"
#include "support/norm_stages_call.h"

namespace {

using namespace fastnorm;
using support::StagesKind;

DeviceFacts facts() { return cuda::make_facts(cuda::kSimt, 0, 132, 8); }

constexpr simt::Order kOrders[] = {simt::Order::kForward, simt::Order::kBackward,
                                   simt::Order::kShuffled};

// A random call, described; its tensors are the GPU's.
struct Described {
  Described(uint64_t call_seed, StagesKind kind)
      : seed(call_seed), call(support::draw_norm_stages(call_seed, kind, true)) {
    Error error;
    EXPECT_EQ(check_norm(&call.args<fastnorm_norm_args>(), {FASTNORM_DEVICE_CUDA, 0}, &desc, error),
              FASTNORM_OK)
        << call.line() << ": " << error.text;
    desc.flags = with_pdl(desc.flags, seed % 4 != 3);
  }

  void run(const NormPlan& plan) {
    call.expect_results(ref::Order::kGpu);
    const NormCall planned = {&desc, &plan};
    EXPECT_EQ(simt::run(std::span(&planned, 1), nullptr, kOrders[seed % std::size(kOrders)]), "")
        << call.line();
    EXPECT_EQ(call.difference(), "") << plan.entry->name << " " << call.line();
  }

  const uint64_t seed;
  support::CheckedCall call;
  NormDesc desc;
};

// What planning chooses. Returns how many calls were compared with double precision.
int64_t run_chosen(uint64_t seeds, StagesKind kind, int64_t least_held = 0) {
  int64_t bounded = 0, held = 0;
  for (uint64_t seed = 0; seed < seeds && !testing::Test::HasFailure(); ++seed) {
    Described described(seed, kind);
    NormPlan plan;
    Error error;
    EXPECT_EQ(make_plan(described.desc, facts(), {}, &plan, error), FASTNORM_OK)
        << described.call.line() << ": " << error.text;
    if (plan.entry != nullptr) described.run(plan);
    held += plan.entry != nullptr && facts().arch->stages->entries[plan.index].variant.is_held();
    bounded += described.call.bounded() != 0 ? 1 : 0;
  }
  EXPECT_GE(held, least_held) << "calls on kernels that hold their rows";
  return bounded;
}

TEST(SimtNormStages, RandomCallsEqualTheModel) {
  EXPECT_GE(run_chosen(300, StagesKind::kAny), 30) << "compared with double precision";
}

TEST(SimtNormStages, AlignedCallsEqualTheModel) {
  EXPECT_GE(run_chosen(60, StagesKind::kAligned), 4) << "compared with double precision";
}

TEST(SimtNormStages, CommonCallsEqualTheModel) {
  EXPECT_GE(run_chosen(50, StagesKind::kGated, 5), 10) << "compared with double precision";
  EXPECT_GE(run_chosen(50, StagesKind::kSandwich, 5), 1) << "compared with double precision";
  EXPECT_GE(run_chosen(80, StagesKind::kModulated, 10), 4) << "compared with double precision";
  EXPECT_GE(run_chosen(60, StagesKind::kScaled, 10), 4) << "compared with double precision";
  EXPECT_GE(run_chosen(160, StagesKind::kMixed, 20), 10) << "compared with double precision";
}

TEST(SimtNormStages, RotatedCallsEqualTheModel) {
  EXPECT_GE(run_chosen(80, StagesKind::kRotated, 20), 4) << "compared with double precision";
}

// Numbers of rows outside a modulator's: each kind of them, on kernels that hold rows and others.
TEST(SimtNormStages, RowsOutsideTheTableTakeTheNearest) {
  constexpr int kCalls = 3;
  constexpr int64_t kRows = 0;
  struct Kind {
    bool wide, held;
    int64_t number;  // kRows: the first behind the rows
    int calls = 0;
  };
  std::vector<Kind> kinds;
  for (const bool held : {false, true}) {
    for (const int64_t number : {int64_t{-1}, kRows, int64_t{INT32_MIN}})
      kinds.push_back({false, held, number});
    for (const int64_t number :
         {int64_t{-1}, kRows, INT64_MIN, INT64_MAX, int64_t{1} << 32, -(int64_t{1} << 32)})
      kinds.push_back({true, held, number});
  }
  const auto seen = [](const Kind& k) { return k.calls >= kCalls; };
  for (uint64_t seed = 0; seed < 4000 && !HasFailure(); ++seed) {
    if (std::all_of(kinds.begin(), kinds.end(), seen)) break;
    Described described(seed, seed % 2 == 0 ? StagesKind::kAny : StagesKind::kModulated);
    NormPlan plan;
    Error error;
    ASSERT_EQ(make_plan(described.desc, facts(), {}, &plan, error), FASTNORM_OK) << error.text;
    if (plan.entry == nullptr) continue;
    const bool held = facts().arch->stages->entries[plan.index].variant.is_held();
    bool wanted = false;
    for (Kind& k : kinds) {
      for (const support::OutsideRow& o : support::outside_rows(described.call)) {
        const int64_t number = k.number == kRows ? o.rows : k.number;
        if (seen(k) || k.wide != o.wide || k.held != held || number != o.number) continue;
        ++k.calls;
        wanted = true;
        break;
      }
    }
    if (wanted) described.run(plan);
  }
  for (const Kind& k : kinds)
    EXPECT_TRUE(seen(k)) << (k.wide ? "i64 " : "i32 ") << k.number << (k.held ? " held" : "");
}

// Each kernel, with several calls that it can serve.
TEST(SimtNormStages, EveryKernelEqualsTheModel) {
  constexpr int kCalls = 12;
  const auto table = cuda::table_of<cuda::NormStagesFamily>(cuda::kSimt);
  std::vector<int> calls(table.size());
  for (uint64_t seed = 1000; seed < 20000 && !HasFailure(); ++seed) {
    if (std::all_of(calls.begin(), calls.end(), [](int count) { return count >= kCalls; })) break;
    Described described(seed, static_cast<StagesKind>(seed % support::kStagesKinds));
    if (described.desc.rows == 0) continue;
    for (size_t i = 0; i < table.size(); ++i) {
      NormPlan plan;
      Error error;
      if (calls[i] >= kCalls || plan_stages_for(described.desc, facts(), static_cast<int32_t>(i),
                                                &plan, error) != FASTNORM_OK)
        continue;
      EXPECT_EQ(plan.entry, &table[i]);
      described.run(plan);
      ++calls[i];
      break;  // the call's memory has its results
    }
  }
  for (size_t i = 0; i < table.size(); ++i)
    EXPECT_EQ(calls[i], kCalls) << table[i].name << " serves too few of the calls";
}

}  // namespace
