// The kernels of norm_heads on the SIMT machine: each of them, and what planning chooses, against
// the model byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/common/pdl.h"
#include "core/norm_heads/check.h"
#include "cuda/families.h"
#include "simt/device.h"
#include "simt/machine.h"
#include "simt/spec.h"
#include "support/checked_call.h"
#include "support/norm_heads_call.h"

namespace {

using namespace fastnorm;
using support::CallKind;

DeviceFacts facts(int multiprocessors = 132) {
  DeviceFacts f;
  f.device_type = FASTNORM_DEVICE_CUDA;
  f.arch = &cuda::kSimt;
  f.multiprocessors = multiprocessors;
  return f;
}

constexpr simt::Order kOrders[] = {simt::Order::kForward, simt::Order::kBackward,
                                   simt::Order::kShuffled};

// A random call, described; its tensors are the GPU's.
struct Described {
  Described(uint64_t call_seed, CallKind kind)
      : seed(call_seed), call(support::draw_norm_heads(call_seed, kind, true)) {
    Error error;
    EXPECT_EQ(check_norm_heads(&call.args<fastnorm_norm_heads_args>(),
                               call.parts<fastnorm_norm_heads_part>(), call.count(),
                               {FASTNORM_DEVICE_CUDA, 0}, &desc, error),
              FASTNORM_OK)
        << call.line() << ": " << error.text;
    desc.pdl = with_pdl(0, seed % 4 != 3);
  }

  void run(const NormHeadsPlan& plan) {
    call.expect_results(ref::Order::kGpu);
    EXPECT_EQ(simt::run(NormHeadsCall{&desc, &plan}, nullptr, kOrders[seed % std::size(kOrders)]),
              "")
        << call.line();
    EXPECT_EQ(call.difference(), "") << plan.kernel << " " << call.line();
  }

  const uint64_t seed;
  support::CheckedCall call;
  NormHeadsDesc desc;
};

// On what planning chooses.
void run_chosen(uint64_t seed, CallKind kind) {
  Described described(seed, kind);
  NormHeadsPlan plan;
  Error error;
  EXPECT_EQ(plan_norm_heads(described.desc, facts(),
                            cuda::table_of<cuda::NormHeadsFamily>(cuda::kSimt), &plan, error),
            FASTNORM_OK)
      << described.call.line() << ": " << error.text;
  if (plan.launches != 0) described.run(plan);
}

TEST(SimtNormHeads, RandomCallsEqualTheModel) {
  for (uint64_t seed = 0; seed < 400 && !HasFailure(); ++seed) run_chosen(seed, CallKind::kAny);
}

TEST(SimtNormHeads, AlignedCallsEqualTheModel) {
  for (uint64_t seed = 0; seed < 150 && !HasFailure(); ++seed) run_chosen(seed, CallKind::kAligned);
}

// On what planning chooses, which includes each kernel of a form, or of two. On a GPU of one
// multiprocessor a group of lanes takes several heads.
void run_form(HeadsForm form, CallKind kind, uint64_t seeds,
              HeadsForm other = HeadsForm::kGeneral) {
  const auto table = cuda::table_of<cuda::NormHeadsFamily>(cuda::kSimt);
  std::vector<int> calls(table.size());
  for (uint64_t seed = 0; seed < seeds && !testing::Test::HasFailure(); ++seed) {
    Described described(seed, kind);
    NormHeadsPlan plan;
    Error error;
    const DeviceFacts gpu = facts(seed % 3 == 0 ? 1 : 132);
    ASSERT_EQ(plan_norm_heads(described.desc, gpu, table, &plan, error), FASTNORM_OK) << error.text;
    if (plan.launches == 0) continue;
    ++calls[static_cast<size_t>(plan.index)];
    described.run(plan);
  }
  for (size_t i = 0; i < table.size(); ++i) {
    const bool wanted = table[i].variant.form == form ||
                        (other != HeadsForm::kGeneral && table[i].variant.form == other);
    EXPECT_TRUE(calls[i] > 0 || !wanted) << table[i].name;
  }
}

// Sums of squares, codes by division and codes of y.
TEST(SimtNormHeads, MoreCallsEqualTheModel) { run_form(HeadsForm::kMore, CallKind::kMore, 200); }

TEST(SimtNormHeads, CallsAcrossHeadsEqualTheModel) {
  run_form(HeadsForm::kTokens, CallKind::kAcross, 200);
}

TEST(SimtNormHeads, IndexersEqualTheModel) {
  run_form(HeadsForm::kIndexer, CallKind::kIndexer, 400, HeadsForm::kIndexerLean);
}

TEST(SimtNormHeads, LatentsEqualTheModel) {
  for (const CallKind kind : {CallKind::kLatents, CallKind::kPrologue})
    run_form(HeadsForm::kLatent, kind, 400);
}

// Many tokens: groups of lanes take several heads one after the other.
TEST(SimtNormHeads, ManyTokensEqualTheModel) {
  DeviceFacts small = facts();
  small.multiprocessors = 1;
  for (uint64_t seed = 0; seed < 6 && !HasFailure(); ++seed) {
    Described described(seed, CallKind::kMany);
    NormHeadsPlan plan;
    Error error;
    ASSERT_EQ(plan_norm_heads(described.desc, small,
                              cuda::table_of<cuda::NormHeadsFamily>(cuda::kSimt), &plan, error),
              FASTNORM_OK)
        << error.text;
    described.run(plan);
  }
}

// More rows than 10240, of more than 32 heads, with rope of some of their columns.
TEST(SimtNormHeads, LargeCallsEqualTheModel) {
  for (uint64_t seed = 0; seed < 2 && !HasFailure(); ++seed) run_chosen(seed, CallKind::kLarge);
}

// Each kernel, with several calls that it can serve.
TEST(SimtNormHeads, EveryKernelEqualsTheModel) {
  constexpr int kCalls = 6;
  const auto table = cuda::table_of<cuda::NormHeadsFamily>(cuda::kSimt);
  std::vector<int> calls(table.size());
  for (uint64_t seed = 1000; seed < 20000 && !HasFailure(); ++seed) {
    if (std::all_of(calls.begin(), calls.end(), [](int count) { return count >= kCalls; })) break;
    Described described(seed, seed % 4 == 0   ? CallKind::kAcross
                              : seed % 8 == 1 ? CallKind::kLatents
                              : seed % 8 == 3 ? CallKind::kIndexer
                                              : CallKind::kAligned);
    for (size_t i = 0; i < table.size(); ++i) {
      NormHeadsPlan plan;
      Error error;
      if (calls[i] >= kCalls ||
          plan_norm_heads_for(described.desc, facts(), table, static_cast<int32_t>(i), &plan,
                              error) != FASTNORM_OK)
        continue;
      EXPECT_STREQ(plan.kernel, table[i].name);
      described.run(plan);
      ++calls[i];
      break;  // the call's memory has its results
    }
  }
  for (size_t i = 0; i < table.size(); ++i)
    EXPECT_EQ(calls[i], kCalls) << table[i].name << " serves too few of the calls";
}

}  // namespace
