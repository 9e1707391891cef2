// The kernels of norm_backward on the SIMT machine: each of them, and what planning chooses,
// against the model byte for byte. The model itself is within the bounds of the formulas in double.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/common/pdl.h"
#include "core/norm_backward/check.h"
#include "core/norm_backward/rows.h"
#include "cuda/families.h"
#include "simt/device.h"
#include "simt/machine.h"
#include "support/checked_call.h"
#include "support/norm_backward_case.h"

namespace {

using namespace fastnorm;
using ref::Pattern;
using ref::Type;
using support::Beside;
using support::GateInPlace;
using support::InPlace;
using support::NormBackwardCase;
using support::Share;

std::span<const NormBackwardEntry> table() {
  return cuda::table_of<cuda::NormBackwardFamily>(cuda::kSm90);
}

DeviceFacts facts() {
  DeviceFacts f;
  f.device_type = FASTNORM_DEVICE_CUDA;
  f.arch = &cuda::kSm90;
  f.multiprocessors = 132;
  f.max_cluster_blocks = cuda::kSm90.max_cluster_blocks;
  return f;
}

// A call, described; its tensors are the GPU's.
class Described {
 public:
  explicit Described(const NormBackwardCase& c, bool pdl = true) : call_(c.line(true)) {
    Error error;
    NormBackwardDesc whole;
    EXPECT_EQ(check_norm_backward(&call_.args<fastnorm_norm_backward_args>(),
                                  {FASTNORM_DEVICE_CUDA, 0}, &whole, error),
              FASTNORM_OK)
        << line() << ": " << error.text;
    parts_ = norm_backward_parts(whole);
    for (int32_t i = 0; i < parts_.count; ++i)
      parts_.at[i].flags = with_pdl(parts_.at[i].flags, pdl);
    call_.expect_results(ref::Order::kGpu);
    EXPECT_EQ(call_.out_of_bounds(), "") << line();
    for (const auto& operand : call_.all()) before_.push_back(operand->now);
  }

  const std::string& line() const { return call_.line(); }

  // On what planning chooses. The kernels' names.
  std::string run(simt::Order order) { return run_on(-1, order); }

  // On a kernel of the table. Its name, "" if it cannot serve the call.
  std::string run_on(int32_t index, simt::Order order) {
    for (size_t i = 0; i < before_.size(); ++i) call_.all()[i]->now = before_[i];
    std::string kernels;
    for (int32_t i = 0; i < parts_.count; ++i) {
      NormBackwardPlan plan;
      Error error;
      const fastnorm_status status =
          index < 0 ? plan_norm_backward(parts_.at[i], facts(), table(), &plan, error)
                    : plan_norm_backward_for(parts_.at[i], facts(), table(), index, &plan, error);
      if (index >= 0 && status == FASTNORM_ERROR_UNSUPPORTED) return "";
      EXPECT_EQ(status, FASTNORM_OK) << line() << ": " << error.text;
      run_part(parts_.at[i], plan, order);
      kernels += (kernels.empty() || plan.launches == 0 ? "" : ", ") + std::string(plan.kernel);
    }
    EXPECT_EQ(call_.difference(), "") << kernels << " " << line();
    return kernels;
  }

 private:
  void run_part(const NormBackwardDesc& part, const NormBackwardPlan& plan, simt::Order order) {
    if (plan.launches == 0) return;
    // Not a number where nothing was written, beginning at a multiple of 256 bytes.
    std::vector<std::byte> room(plan.workspace_bytes + 512, std::byte{0xff});
    auto* const begin =
        reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(room.data()) + 255) / 256 * 256);
    const NormBackwardCall call = {part, plan, 0, false};
    EXPECT_EQ(simt::run(std::span(&call, 1), begin, order), "") << plan.kernel << line();
    EXPECT_EQ(std::to_integer<int>(room.back()), 0xff) << plan.kernel << line();
  }

  support::CheckedCall call_;
  NormBackwardParts parts_;
  std::vector<std::vector<unsigned char>> before_;
};

NormBackwardCase plain(Type type, int64_t rows, int64_t n) {
  NormBackwardCase c;
  c.batch = rows, c.n = n;
  c.dtype = c.x = c.dy = c.dx = c.weight = c.dresidual_in = c.gate = c.dgate = c.bias = type;
  c.branch.weight = c.branch.gate = type;
  c.eps = 1e-5f;
  return c;
}

// What a kernel of the table is for, of n columns: `second` is another such call.
NormBackwardCase case_of(const NormBackwardVariant& v, int64_t n, bool second, bool before) {
  const Type type = v.dtype == Dtype::kF32   ? Type::kF32
                    : v.dtype == Dtype::kF16 ? Type::kF16
                                             : Type::kBF16;
  const bool general = v.writes_rows(), few_bits = type != Type::kF32;
  const NormBackwardRows order = norm_backward_rows(1 << 20, n);
  // Two rows of some lanes, and an incomplete step; few where the model would take long.
  const int64_t rows = v.form == BackwardForm::kPersistent && n >= 8192 ? order.blocks + 3
                       : v.form == BackwardForm::kFew                   ? 2 * v.lanes + 1
                                                                        : 3 * order.lanes + 2;
  NormBackwardCase c = plain(type, rows, n);
  c.seed = static_cast<uint64_t>(n);
  const bool layer = v.stat == Stat::kLayer;
  c.kind =
      layer || (v.form == BackwardForm::kGatedRows && second) ? ref::Kind::kLayer : ref::Kind::kRms;
  c.has_dbias = layer || general;
  c.has_dresidual_in = v.input == BackwardInput::kAdd || ((general || v.has_branch()) && !second);
  c.rounding = second && few_bits ? before ? ref::Rounding::kEveryStep : ref::Rounding::kNormalized
                                  : ref::Rounding::kOnce;
  c.accumulate_dweight = c.accumulate_dbias = second;
  c.has_gate = c.has_dgate = v.input == BackwardInput::kGated || v.form == BackwardForm::kGatedRows;
  c.gate_act = second ? ref::Activation::kSigmoid : ref::Activation::kSilu;
  c.gate_before = before;
  c.has_bias = general && !second;
  c.gate_from_rounded = second;
  if (v.input == BackwardInput::kGated && !second) c.gate_pattern = Pattern::kOutlier;
  support::BranchCase& b = c.branch;
  const bool modulated = v.input == BackwardInput::kModulated;
  b.has_branch = b.has_dbranch = v.has_branch();
  b.normalise = b.has_weight = b.has_dweight = b.has_statistics = v.has_branch() && !modulated;
  b.has_gate = b.has_dgate = modulated;
  b.act = c.gate_act;
  b.rounding = second ? ref::Rounding::kNormalized : ref::Rounding::kOnce;
  b.alpha = v.has_branch() ? 0.75f : 0;
  b.has_sum_scale = v.has_branch() && !second;
  b.accumulate_dweight = b.accumulate_dgate = b.in_place = second;
  settle(&c);
  return c;
}

// Every kernel of the table at the longest row that it holds, at one a vector shorter, and with
// more rows than a step takes.
TEST(SimtNormBackward, EveryKernelHasTheModelsBits) {
  int kernels = 0;
  for (size_t i = 0; i < table().size(); ++i) {
    const NormBackwardVariant& v = table()[i].variant;
    if (v.form == BackwardForm::kFold || v.form == BackwardForm::kColumns ||
        v.form == BackwardForm::kGatedColumns || v.form == BackwardForm::kBranchColumns ||
        v.form == BackwardForm::kBranchRows) {
      continue;
    }
    ++kernels;
    const bool general = v.writes_rows();
    const int64_t vector = v.dtype == Dtype::kF32 ? 4 : 8;
    const int64_t longest =
        general ? 4 * v.threads + 3 : int64_t{v.row_threads()} * v.vectors * vector;
    for (const bool second : {false, true}) {
      const int64_t n = !second ? longest : general ? 7 : longest - vector;
      for (const bool before : {false, true}) {
        const NormBackwardCase c = case_of(v, n, second, before);
        if (before && !c.has_gate) continue;
        Described call(c);
        const std::string ran = call.run_on(static_cast<int32_t>(i), simt::Order::kShuffled);
        EXPECT_TRUE(ran == table()[i].name) << table()[i].name << " " << call.line();
        if (testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_EQ(kernels, static_cast<int>(table().size()) - 19);
}

// Many rows through the forms that can hold them: lanes with several rows, all blocks of the row
// order. Returns what planning chooses.
std::string run_all_forms(const NormBackwardCase& c) {
  Described call(c);
  int forms = 0;
  for (size_t i = 0; i < table().size(); ++i) {
    if (call.run_on(static_cast<int32_t>(i), simt::Order::kBackward) != "") ++forms;
  }
  EXPECT_GE(forms, 3) << call.line();
  return call.run(simt::Order::kForward);
}

struct Rows {
  int64_t rows, n;
};
constexpr Rows kManyRows[] = {{9000, 16},  {9000, 64},  {4500, 128},
                              {1100, 512}, {300, 2048}, {150, 4096}};

TEST(SimtNormBackward, FormsAgreeOnManyRows) {
  for (const Rows& r : kManyRows) {
    for (const Type type : {Type::kBF16, Type::kF32}) {
      NormBackwardCase c = plain(type, r.rows, r.n);
      c.has_dbias = r.n == 512;
      c.kind = c.has_dbias ? ref::Kind::kLayer : ref::Kind::kRms;
      EXPECT_NE(run_all_forms(c), "");
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Calls with a gate, which its gradient replaces, as dx replaces dy or x.
TEST(SimtNormBackward, GatedFormsAgreeOnManyRows) {
  for (const Rows& r : kManyRows) {
    for (const auto act : {ref::Activation::kSilu, ref::Activation::kSigmoid}) {
      for (const bool before : {false, true}) {
        const bool silu = act == ref::Activation::kSilu;
        NormBackwardCase c = plain(Type::kBF16, r.rows, r.n);
        c.has_gate = c.has_dgate = true;
        c.gate_act = act, c.gate_before = before;
        c.gate_in_place = GateInPlace::kGate;
        c.in_place = silu ? InPlace::kDy : InPlace::kX;
        c.weight_offset = 1;
        c.gate_pattern = silu ? Pattern::kOutlier : Pattern::kRandomBits;
        EXPECT_NE(run_all_forms(c).find("gated persistent"), std::string::npos);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

simt::Order order_of(ref::Random& random) { return static_cast<simt::Order>(random.below(3)); }

// Calls at random, as planning runs them.
TEST(SimtNormBackward, WhatPlanningChooses) {
  ref::Random random(20261127);
  int general = 0, persistent = 0, few = 0;
  for (int i = 0; i < 1500; ++i) {
    NormBackwardCase c = support::random_case(&random, 1 << 12, Beside::kNothing);
    // Half of them are what forms that hold rows serve.
    if (random.one_in(2)) {
      c.dtype = c.dx = c.dy = c.x = c.weight = c.dresidual_in = random.of(ref::kTypes);
      c.n = (c.n + 7) / 8 * 8;
      c.shift = c.padding = 0;
      c.dresidual_in_place = false;
      settle(&c);
    }
    Described call(c, !random.one_in(4));
    const std::string ran = call.run(order_of(random));
    persistent += ran.find("persistent") != std::string::npos ? 1 : 0;
    few += ran.find(" few ") != std::string::npos ? 1 : 0;
    general += ran.find(" rows ") != std::string::npos ? 1 : 0;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(general, 300);
  EXPECT_GT(persistent, 20);
  EXPECT_GT(few, 20);
}

TEST(SimtNormBackward, Gates) {
  ref::Random random(20261128);
  int before = 0, held = 0;
  for (int i = 0; i < 500; ++i) {
    const NormBackwardCase c = support::random_case(&random, 1 << 12, Beside::kGate);
    Described call(c, !random.one_in(4));
    const std::string ran = call.run(order_of(random));
    if (ran.find("gated persistent") != std::string::npos) {
      EXPECT_TRUE(c.has_dx && c.dtype == Type::kBF16 && c.kind == ref::Kind::kRms) << ran;
      ++held;
    } else if (c.has_gate && c.rows() != 0) {
      EXPECT_NE(ran.find(c.has_dx || c.has_dgate ? "gated rows" : "gated columns"),
                std::string::npos)
          << ran << " " << call.line();
    }
    before += c.gate_before ? 1 : 0;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(before, 100);
}

TEST(SimtNormBackward, Branches) {
  ref::Random random(20261201);
  for (int i = 0; i < 300 && !testing::Test::HasFailure(); ++i) {
    Described call(support::random_case(&random, 1 << 12, Beside::kBranch), !random.one_in(4));
    call.run(order_of(random));
  }
}

// What held forms serve: of bf16, vectors, and weights that all rows of a group share.
NormBackwardCase aligned_case(ref::Random& random, Beside beside, int64_t n) {
  NormBackwardCase c = support::random_case(&random, 1 << 13, beside);
  const int64_t heads = c.heads, batch = 1 + random.below(random.one_in(3) ? 200 / heads : 6);
  c.batch = n < 512 && random.one_in(4) ? batch + 100 : batch;
  c.n = n;
  c.dtype = c.x = c.dy = c.dx = c.gate = c.dgate = c.dresidual_in = Type::kBF16;
  c.weight = c.dweight = random.one_in(3) ? Type::kF32 : Type::kBF16;
  c.padding = c.grouped ? 0 : c.padding / 8 * 8;
  c.shift = random.one_in(8) ? 1 + static_cast<int>(random.below(7)) : 0;
  c.expand = support::Expand::kNo;
  c.has_dx = true, c.has_dresidual = false;
  if (c.share == Share::kNone) c.share = Share::kAll;
  c.bias_share = c.share;
  if (random.one_in(4)) c.in_place = InPlace::kX;
  return c;
}

// Gates that held forms serve, at random: roundings, groups, strides, gradients over inputs.
TEST(SimtNormBackward, HeldGates) {
  ref::Random random(20261129);
  int held = 0;
  constexpr int kCalls = 400;
  for (int i = 0; i < kCalls; ++i) {
    constexpr int64_t kLengths[] = {8, 24, 64, 72, 128, 136, 256, 320, 512, 640, 1024, 1536};
    NormBackwardCase c = aligned_case(random, Beside::kGate, random.of(kLengths));
    c.kind = ref::Kind::kRms;
    c.has_gate = true, c.has_dbias = c.has_bias = c.has_dresidual_in = false;
    c.gate_act = random.one_in(2) ? ref::Activation::kSilu : ref::Activation::kSigmoid;
    c.has_statistics = c.has_statistics || !c.has_weight || !c.has_dweight;
    settle(&c);
    Described call(c, !random.one_in(4));
    const std::string ran = call.run(order_of(random));
    const bool is_held = ran.find("gated persistent") != std::string::npos;
    EXPECT_EQ(is_held, c.shift == 0) << ran << " " << call.line();
    held += is_held ? 1 : 0;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(held, kCalls / 2);
}

// Branches that held forms serve, at random.
TEST(SimtNormBackward, HeldBranches) {
  ref::Random random(20261130);
  int held = 0;
  constexpr int kCalls = 300;
  for (int i = 0; i < kCalls; ++i) {
    constexpr int64_t kLengths[] = {72,   128,  136,  256,  264,  512,  520,  768,
                                    1024, 1032, 2048, 2560, 4096, 4224, 5120, 5632};
    NormBackwardCase c = aligned_case(random, Beside::kBranch, random.of(kLengths));
    support::BranchCase& b = c.branch;
    const bool modulated = random.one_in(2), dweight = !random.one_in(4);
    c.kind = modulated ? ref::Kind::kLayer : ref::Kind::kRms;
    c.has_weight = true, c.has_dbias = modulated && c.has_dbias;
    b.has_branch = b.has_dbranch = true;
    b.kind = ref::Kind::kRms;
    b.normalise = b.has_weight = !modulated, b.has_gate = modulated;
    b.has_dweight = b.has_dgate = dweight;
    b.has_bias = b.has_dbias = false;
    b.weight = b.gate = c.weight, b.dweight = b.dgate = random.one_in(2) ? c.weight : Type::kF32;
    b.weight_offset = c.weight_offset;
    b.share = b.gate_share = c.share;
    const bool sums = dweight || c.has_dweight || c.has_dbias;
    c.has_statistics = c.has_statistics || !sums;
    b.has_statistics = !modulated && (b.has_statistics || !sums);
    settle(&c);
    Described call(c, !random.one_in(4));
    const std::string ran = call.run(order_of(random));
    const bool is_held =
        ran.find(modulated ? "modulated persistent" : "branch persistent") != std::string::npos;
    // Nor do held forms serve a branch that nothing else reads, or, without sums, weights of heads.
    EXPECT_FALSE(is_held && c.shift != 0) << ran << " " << call.line();
    held += is_held ? 1 : 0;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(held, kCalls * 2 / 3);
}

// The longest rows that a cluster holds, with a second row for some of its blocks.
TEST(SimtNormBackward, RowsOfAWholeCluster) {
  for (const bool layer : {false, true}) {
    NormBackwardCase c = plain(Type::kBF16, 34, 32768);
    c.kind = layer ? ref::Kind::kLayer : ref::Kind::kRms, c.has_dbias = layer;
    const std::string ran = Described(c).run(simt::Order::kShuffled);
    EXPECT_NE(ran.find("persistent 512x"), std::string::npos) << ran;
  }
}

// A row longer than any kernel holds.
TEST(SimtNormBackward, LongRows) {
  for (const bool layer : {false, true}) {
    NormBackwardCase c = plain(Type::kBF16, 3, 70001);
    c.kind = layer ? ref::Kind::kLayer : ref::Kind::kRms, c.has_dbias = layer;
    c.has_statistics = false, c.has_dresidual_in = true;
    EXPECT_NE(Described(c).run(simt::Order::kForward), "");
  }
}

// Sums over no rows are 0.
TEST(SimtNormBackward, NoRows) {
  NormBackwardCase c = plain(Type::kF16, 0, 33);
  c.heads = 3, c.share = c.bias_share = Share::kByHead, c.has_dbias = true;
  EXPECT_EQ(Described(c).run(simt::Order::kForward), "norm_backward fold");
}

// A wrong order of sums shows: along rows, and over them.
TEST(SimtNormBackward, AnotherOrderDiffers) {
  for (const bool rows : {false, true}) {
    NormBackwardCase c = plain(Type::kF32, 200, 1024);
    c.has_dx = rows, c.has_dweight = !rows;
    support::CheckedCall right(c.line(true)), wrong(c.line(true));
    right.expect_results(ref::Order::kGpu), wrong.expect_results(ref::Order::kGpuLowestFirst);
    bool differs = false;
    for (size_t i = 0; i < right.all().size(); ++i)
      differs = differs || right.all()[i]->expected != wrong.all()[i]->expected;
    EXPECT_TRUE(differs) << c.line(true);
  }
}

}  // namespace
