// The kernels of norm_heads_backward on the SIMT machine: each of them, and what planning chooses,
// against the model byte for byte. The model itself is within the bounds of the formulas in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/common/pdl.h"
#include "core/norm_backward/check.h"
#include "core/norm_heads_backward/check.h"
#include "core/norm_heads_backward/plan.h"
#include "cuda/families.h"
#include "simt/device.h"
#include "simt/machine.h"
#include "simt/spec.h"
#include "support/checked_call.h"
#include "support/norm_heads_backward_call.h"

namespace {

using namespace fastnorm;
using support::CheckedCall;
using support::GradientCallKind;

DeviceFacts facts(int32_t multiprocessors = 132) {
  DeviceFacts f;
  f.device_type = FASTNORM_DEVICE_CUDA;
  f.arch = &cuda::kSimt;
  f.multiprocessors = multiprocessors;
  return f;
}

std::span<const NormHeadsBackwardEntry> table() {
  return cuda::table_of<cuda::NormHeadsBackwardFamily>(cuda::kSimt);
}

constexpr simt::Order kOrders[] = {simt::Order::kForward, simt::Order::kBackward,
                                   simt::Order::kShuffled};

// A random call, described; its tensors are the GPU's.
struct Described {
  Described(uint64_t call_seed, GradientCallKind kind)
      : Described(call_seed, support::draw_norm_heads_backward(call_seed, kind, true)) {}
  Described(uint64_t call_seed, const std::string& line) : seed(call_seed), call(line) {
    Error error;
    NormHeadsBackwardDesc desc;
    EXPECT_EQ(check_norm_heads_backward(&call.args<fastnorm_norm_heads_args>(),
                                        call.parts<fastnorm_norm_heads_backward_part>(),
                                        call.count(), {FASTNORM_DEVICE_CUDA, 0}, &desc, error),
              FASTNORM_OK)
        << call.line() << ": " << error.text;
    for (int32_t i = 0; i < desc.count; ++i) {
      const NormBackwardParts of_one = norm_backward_parts(desc.wholes[i]);
      for (int32_t k = 0; k < of_one.count; ++k) {
        parts.push_back(of_one.at[k]);
        parts.back().flags = with_pdl(parts.back().flags, seed % 4 != 3);
        first.push_back(of_one.count == 2 && k == 0);
      }
    }
    for (const NormBackwardDesc& part : parts) {
      gradients.first[gradients.count] = first[static_cast<size_t>(gradients.count)];
      gradients.at[gradients.count++] = &part;
    }
  }
  Described(const Described&) = delete;

  void run(const NormHeadsBackwardPlan& plan) {
    // Not a number where nothing was written, beginning at a multiple of 256 bytes.
    std::vector<std::byte> room(plan.workspace_bytes + 256, std::byte{0xff});
    auto* const begin =
        reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(room.data()) + 255) / 256 * 256);
    call.expect_results(ref::Order::kGpu);
    ASSERT_EQ(call.out_of_bounds(), "") << call.line();
    EXPECT_EQ(simt::run(NormHeadsBackwardCall{&gradients, &plan}, begin,
                        kOrders[seed % std::size(kOrders)]),
              "")
        << call.line();
    EXPECT_EQ(call.difference(), "") << plan.kernel << " " << call.line();
  }

  const uint64_t seed;
  CheckedCall call;
  std::vector<NormBackwardDesc> parts;
  std::vector<bool> first;
  HeadsGradients gradients;
};

// On what planning chooses.
void run_chosen(uint64_t seed, GradientCallKind kind, int32_t multiprocessors = 132) {
  Described described(seed, kind);
  NormHeadsBackwardPlan plan;
  Error error;
  ASSERT_EQ(
      plan_norm_heads_gradients(described.gradients, facts(multiprocessors), table(), &plan, error),
      FASTNORM_OK)
      << described.call.line() << ": " << error.text;
  if (plan.launches != 0) described.run(plan);
}

TEST(SimtNormHeadsBackward, RandomCallsEqualTheModel) {
  for (uint64_t seed = 0; seed < 120 && !HasFailure(); ++seed)
    run_chosen(seed, GradientCallKind::kAny);
}

TEST(SimtNormHeadsBackward, PlainCallsEqualTheModel) {
  for (uint64_t seed = 0; seed < 20 && !HasFailure(); ++seed)
    run_chosen(seed, GradientCallKind::kPlain);
}

TEST(SimtNormHeadsBackward, AlignedCallsEqualTheModel) {
  for (uint64_t seed = 0; seed < 60 && !HasFailure(); ++seed)
    run_chosen(seed, GradientCallKind::kAligned);
}

// More rows than lanes: every lane adds several.
TEST(SimtNormHeadsBackward, ManyRowsEqualTheModel) {
  for (uint64_t seed = 0; seed < 3 && !HasFailure(); ++seed)
    run_chosen(seed, GradientCallKind::kAlignedMany, 2);
}

// Tokens of many columns, on each kernel that holds the first launch.
TEST(SimtNormHeadsBackward, WideTokensEqualTheModel) {
  std::vector<int> calls(table().size());
  for (uint64_t seed = 0; seed < 150 && !HasFailure(); ++seed) {
    Described described(seed, GradientCallKind::kAlignedWide);
    NormHeadsBackwardPlan plan;
    Error error;
    ASSERT_EQ(plan_norm_heads_gradients(described.gradients, facts(), table(), &plan, error),
              FASTNORM_OK)
        << error.text;
    if (plan.launches == 0) continue;
    ++calls[static_cast<size_t>(plan.steps[0].index)];
    described.run(plan);
  }
  for (size_t i = 0; i < table().size(); ++i)
    EXPECT_TRUE(calls[i] > 0 || !table()[i].variant.has_tokens()) << table()[i].name;
}

// Sums of heads that share a statistic, on each kernel that has a token's heads in one launch: one
// row in each lane, and several.
TEST(SimtNormHeadsBackward, WholeTokensWithSumsEqualTheModel) {
  for (size_t i = 0; i < table().size(); ++i) {
    if (!table()[i].variant.is_whole()) continue;
    for (const auto& [kind, wanted] :
         {std::pair(GradientCallKind::kAlignedWide, 4), {GradientCallKind::kAlignedWideMany, 2}}) {
      int calls = 0;
      for (uint64_t seed = 0; seed < 40000 && calls < wanted && !HasFailure(); ++seed) {
        Described described(seed, kind);
        NormHeadsBackwardPlan plan;
        Error error;
        const bool sums =
            std::any_of(described.parts.begin(), described.parts.end(), [](const auto& part) {
              return part.of_heads.across_heads && part.has_sums() && part.dx;
            });
        if (!sums ||
            plan_norm_heads_gradients_for(described.gradients, facts(), table(),
                                          static_cast<int32_t>(i), &plan, error) != FASTNORM_OK)
          continue;
        EXPECT_EQ(plan.launches, 2);
        described.run(plan);
        ++calls;
      }
      EXPECT_EQ(calls, wanted) << table()[i].name;
    }
  }
}

// Such sums where a thread block has 1, 2, 4, 8 and 16 tokens at once, each in more lanes than one.
TEST(SimtNormHeadsBackward, WholeTokensSideBySideEqualTheModel) {
  constexpr int64_t kColumns = 256, kTokens = 37;
  for (size_t i = 0; i < table().size(); ++i) {
    const NormHeadsBackwardVariant& v = table()[i].variant;
    if (!v.is_whole()) continue;
    for (const int64_t heads : {16, 8, 4, 2, 1}) {
      const auto type = support::id_of(v.dtype == Dtype::kF16 ? ref::Type::kF16 : ref::Type::kBF16);
      support::LineWriter line("norm_heads_backward", static_cast<uint64_t>(heads), true);
      line.set("parts[0].flags",
               int64_t{FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ACROSS_HEADS});
      line.set("parts[0].eps", 1e-5);
      for (const char* rows : {"dy", "x", "dx"})
        line.tensor(std::string("parts[0].") + rows, type, {kTokens, heads, kColumns});
      for (const char* columns : {"weight", "dweight"})
        line.tensor(std::string("parts[0].") + columns, type, {heads, kColumns});
      Described described(i, line.line());
      NormHeadsBackwardPlan plan;
      Error error;
      ASSERT_EQ(plan_norm_heads_gradients_for(described.gradients, facts(), table(),
                                              static_cast<int32_t>(i), &plan, error),
                FASTNORM_OK)
          << error.text;
      described.run(plan);
      if (HasFailure()) return;
    }
  }
}

// Each kernel that has rows, with several calls that it can serve.
TEST(SimtNormHeadsBackward, EveryKernelEqualsTheModel) {
  constexpr int kCalls = 4;
  std::vector<int> calls(table().size());
  const auto enough = [&](size_t i) {
    return calls[i] >= kCalls || table()[i].variant.form == HeadsBackwardForm::kFold;
  };
  for (uint64_t seed = 1000; seed < 4000 && !HasFailure(); ++seed) {
    const bool held = seed % 8 != 0;
    Described described(seed, held ? GradientCallKind::kAligned : GradientCallKind::kAny);
    bool done = true;
    for (size_t i = 0; i < table().size(); ++i) {
      done = done && enough(i);
      NormHeadsBackwardPlan plan;
      Error error;
      if (enough(i) ||
          plan_norm_heads_gradients_for(described.gradients, facts(), table(),
                                        static_cast<int32_t>(i), &plan, error) != FASTNORM_OK)
        continue;
      // A kernel of kTokens has the first launch, if the call needs one; others have the rows.
      const bool first = table()[i].variant.has_tokens();
      if (plan.launches == 0 ||
          (first ? plan.steps[0].index != static_cast<int32_t>(i) : plan.entry != &table()[i])) {
        continue;
      }
      described.run(plan);
      ++calls[i];
      done = false;
      break;  // the call's memory has its results
    }
    if (done) break;
  }
  for (size_t i = 0; i < table().size(); ++i)
    EXPECT_TRUE(enough(i)) << table()[i].name << " serves too few of the calls";
}

// A wrong order of sums along a row shows.
TEST(SimtNormHeadsBackward, AnotherOrderDiffers) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const std::string line = support::draw_norm_heads_backward(seed, GradientCallKind::kAny, true);
    CheckedCall right(line), wrong(line);
    right.expect_results(ref::Order::kGpu), wrong.expect_results(ref::Order::kGpuLowestFirst);
    for (size_t i = 0; i < right.all().size(); ++i) {
      if (right.all()[i]->expected != wrong.all()[i]->expected) return;
    }
  }
  FAIL() << "100 calls have the same results in both orders";
}

}  // namespace
