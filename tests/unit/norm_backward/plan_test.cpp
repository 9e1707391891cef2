// The kernels of the backward pass and the lists that choose among them, for every architecture.
#include "core/norm_backward/plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "core/norm_backward/choice.h"
#include "cuda/arch.h"
#include "cuda/families.h"

namespace fastnorm {
namespace {

DeviceFacts facts_of(const ArchSpec& arch) {
  DeviceFacts facts;
  facts.device_type = FASTNORM_DEVICE_CUDA;
  facts.arch = &arch;
  facts.multiprocessors = 132;
  facts.max_cluster_blocks = arch.max_cluster_blocks;
  return facts;
}

// An aligned call. Its addresses are not real.
NormBackwardDesc call_of(const NormBackwardVariant& v, int64_t rows, int64_t n) {
  NormBackwardDesc d;
  d.rows = d.shared_rows = d.outer[0] = rows;
  d.n = n;
  d.dtype = v.dtype;
  d.kind = v.stat == Stat::kLayer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
  d.inv_n = 1;
  d.dy_element_bytes = dtype_bytes(v.dtype);
  uintptr_t address = uintptr_t{1} << 40;
  const auto rows_at = [&](RowTensor& t, Dtype dtype, int64_t count) {
    t.data = reinterpret_cast<std::byte*>(address);
    address += uintptr_t{1} << 40;
    t.dtype = dtype;
    t.stride_bytes[0] = count * dtype_bytes(dtype);
  };
  rows_at(d.x, v.dtype, n), rows_at(d.dy, v.dtype, n), rows_at(d.dx, v.dtype, n);
  if (v.input == BackwardInput::kAdd) rows_at(d.dresidual_in, v.dtype, n);
  d.gate.present = v.input == BackwardInput::kGated;
  if (d.gate.present) {
    d.gate.act = FASTNORM_ACTIVATION_SILU;
    rows_at(d.gate.gate, v.dtype, n), rows_at(d.gate.dgate, v.dtype, n);
  }
  d.branch.present = v.has_branch();
  d.branch.normalise = v.input == BackwardInput::kBranch;
  if (v.has_branch()) {
    rows_at(d.branch.branch, v.dtype, n), rows_at(d.branch.dbranch, v.dtype, n);
    rows_at(d.dresidual_in, v.dtype, n), rows_at(d.branch.rstd, Dtype::kF32, 1);
  }
  rows_at(d.rstd, Dtype::kF32, 1);
  if (v.stat == Stat::kLayer) rows_at(d.mean, Dtype::kF32, 1);
  d.weight.data = d.dweight.data = reinterpret_cast<std::byte*>(address);
  d.weight.dtype = v.dtype, d.dweight.dtype = Dtype::kF32;
  if (d.branch.normalise) d.branch.weight = d.weight, d.branch.dweight = d.dweight;
  if (v.input == BackwardInput::kModulated)
    d.branch.residual_gate = d.weight, d.dbias = d.branch.dresidual_gate = d.dweight;
  return d;
}

TEST(NormBackwardPlan, KernelsAreFewEnough) {
  for (const ArchSpec* arch : cuda::kArchs) {
    unsigned plain = 0, of_stages = 0;
    for (const NormBackwardEntry& entry : cuda::table_of<cuda::NormBackwardFamily>(*arch)) {
      const NormBackwardVariant& v = entry.variant;
      const bool has_gate = v.input == BackwardInput::kGated ||
                            v.form == BackwardForm::kGatedColumns ||
                            v.form == BackwardForm::kGatedRows;
      const bool has_branch = v.has_branch() || v.form == BackwardForm::kBranchColumns ||
                              v.form == BackwardForm::kBranchRows;
      ++(has_gate || has_branch ? of_stages : plain);
    }
    EXPECT_LE(plain, arch == &cuda::kSm90 ? 240u : 36u) << arch->name;
    EXPECT_LE(of_stages, arch == &cuda::kSm90 ? 60u : 24u) << arch->name;
    EXPECT_GT(plain, 0u) << arch->name;
  }
}

TEST(NormBackwardPlan, NamesAreUniqueAndWordsHoldAllNumbers) {
  for (const ArchSpec* arch : cuda::kArchs) {
    std::set<std::string> names;
    for (const NormBackwardEntry& entry : cuda::table_of<cuda::NormBackwardFamily>(*arch)) {
      EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
      EXPECT_EQ(backward_variant_of(entry.order), entry.variant) << entry.name;
    }
  }
}

// A thread block has at most 1024 threads and 227 KB. Warps are complete, and 15 barriers have
// names.
TEST(NormBackwardPlan, KernelsFitAThreadBlock) {
  constexpr int32_t kMostShared = 227 << 10, kOwnShared = 10 << 10;  // own: of those with a ring
  for (const NormBackwardEntry& entry : cuda::table_of<cuda::NormBackwardFamily>(cuda::kSm90)) {
    const NormBackwardVariant& v = entry.variant;
    EXPECT_LE(most_backward_shared_bytes(v), kMostShared - kOwnShared) << entry.name;
    EXPECT_LE(v.block_threads(), 1024) << entry.name;
    EXPECT_EQ(v.block_threads() % 32, 0) << entry.name;
    if (v.threads > 32) {
      EXPECT_LT(v.lanes, 16) << entry.name;
    }
    if (v.vectors > 1) {
      EXPECT_EQ(v.row_threads() & (v.row_threads() - 1), 0) << entry.name << ": digits of a vector";
    }
  }
}

// Some call selects every held kernel, and every line finds its kernel. A call of a list's kind
// gets the list's form.
TEST(NormBackwardPlan, LinesAndKernelsBelongTogether) {
  const ArchSpec& arch = cuda::kSm90;
  const auto table = cuda::table_of<cuda::NormBackwardFamily>(arch);
  const DeviceFacts facts = facts_of(arch);
  std::set<const NormBackwardEntry*> chosen;
  int lines = 0;
  for (const NormBackwardList& list : arch.backward_choices->lists) {
    const auto is_for = [&](BackwardJob job) {
      return list.kinds.jobs == 1 << static_cast<int>(job);
    };
    if (is_for(BackwardJob::kAny)) continue;
    const BackwardForm form =
        is_for(BackwardJob::kMany) ? BackwardForm::kPersistent : BackwardForm::kFew;
    for (const NormBackwardChoice& line : list.lines) {
      ++lines;
      for (int number = 0; number < 6 * kBackwardInputs; ++number) {
        NormBackwardVariant v;
        v.dtype = static_cast<Dtype>(number % 3);
        v.stat = static_cast<Stat>(number / 3 % 2),
        v.input = static_cast<BackwardInput>(number / 6);
        const auto has = [](uint8_t bits, auto value) {
          return (bits >> static_cast<int>(value) & 1) != 0;
        };
        if (!has(list.kinds.dtypes, v.dtype) || !has(list.kinds.stats, v.stat) ||
            !has(list.kinds.inputs, v.input)) {
          continue;
        }
        for (const int64_t rows :
             {int64_t{line.least_rows}, std::min<int64_t>(line.most_rows, int64_t{1} << 20)}) {
          for (int64_t n : {int64_t{line.least_vectors} + 15, int64_t{line.most_vectors}}) {
            n = n / 16 * 16;
            NormBackwardDesc d = call_of(v, rows, n);
            if (is_for(BackwardJob::kAlone)) d.dweight = {};
            // The list for few rows takes such calls first.
            if (is_for(BackwardJob::kMany)) d.in_place = true;
            NormBackwardPlan plan;
            Error error;
            ASSERT_EQ(plan_norm_backward(d, facts, table, &plan, error), FASTNORM_OK) << error.text;
            EXPECT_EQ(plan.entry->variant.form, form)
                << line.text << " " << plan.kernel << " n " << n;
            EXPECT_EQ(plan.entry->variant.threads, line.pick.threads) << line.text << " " << rows;
            EXPECT_STREQ(plan.kind, list.text);
            EXPECT_STREQ(plan.choice, line.text);
            chosen.insert(plan.entry);
          }
        }
      }
    }
  }
  EXPECT_GT(lines, 40);
  for (const NormBackwardEntry& entry : table) {
    if (entry.variant.is_streamed()) continue;
    EXPECT_TRUE(chosen.contains(&entry)) << entry.name << " is chosen by no line";
  }
}

// Calls with a gate that the held forms do not have run on their own general kernels, aligned or
// not, on every architecture.
TEST(NormBackwardPlan, GatesHaveTheirForms) {
  for (const ArchSpec* arch : cuda::kArchs) {
    for (int number = 0; number < 6; ++number) {
      NormBackwardVariant v;
      v.dtype = static_cast<Dtype>(number % 3), v.stat = static_cast<Stat>(number / 3);
      for (const int64_t n : {int64_t{64}, int64_t{4096}}) {
        NormBackwardDesc d = call_of(v, 4096, n);
        d.gate.present = true;
        d.gate.gate = d.dy;
        NormBackwardPlan plan;
        Error error;
        const auto table = cuda::table_of<cuda::NormBackwardFamily>(*arch);
        const auto form_of = [&](int step) {
          return table[static_cast<size_t>(plan.steps[step].index)].variant.form;
        };
        ASSERT_EQ(plan_norm_backward(d, facts_of(*arch), table, &plan, error), FASTNORM_OK);
        ASSERT_EQ(plan.launches, 3) << arch->name;
        EXPECT_EQ(form_of(0), BackwardForm::kGatedColumns);
        EXPECT_EQ(form_of(1), BackwardForm::kGatedRows);
        EXPECT_EQ(form_of(2), BackwardForm::kFold);
        EXPECT_EQ(plan.entry->variant.form, BackwardForm::kGatedRows);
        EXPECT_EQ(plan.entry->variant.dtype, v.dtype);
        EXPECT_EQ(plan.entry->variant.stat, Stat::kRms) << "which takes either statistic";
        EXPECT_EQ(plan.entry->variant.threads, n == 64 ? 32 : 256);
        d.rstd = d.mean = {};
        ASSERT_EQ(plan_norm_backward(d, facts_of(*arch), table, &plan, error), FASTNORM_OK);
        ASSERT_EQ(plan.launches, 4) << arch->name;
        EXPECT_EQ(form_of(0), BackwardForm::kGatedRows);
        EXPECT_EQ(plan.steps[0].bits & kBackwardStatisticsOnly, kBackwardStatisticsOnly);
        d.dweight = {}, d.dx = {};
        d.gate.dgate = d.dy;
        ASSERT_EQ(plan_norm_backward(d, facts_of(*arch), table, &plan, error), FASTNORM_OK);
        ASSERT_EQ(plan.launches, 1) << arch->name;
        EXPECT_EQ(form_of(0), BackwardForm::kGatedRows);
        EXPECT_EQ(plan.workspace_bytes, 0u);
        d.gate = {};
        d.dx = d.dy;
        ASSERT_EQ(plan_norm_backward(d, facts_of(*arch), table, &plan, error), FASTNORM_OK);
        EXPECT_EQ(form_of(0), BackwardForm::kRows);
      }
    }
  }
}

// A warp has rows up to a limit.
TEST(NormBackwardPlan, WarpsHaveNoGatedRowsBeyondTheirLimit) {
  for (const ArchSpec* arch : cuda::kArchs) {
    const auto table = cuda::table_of<cuda::NormBackwardFamily>(*arch);
    int warps = 0;
    for (size_t i = 0; i < table.size(); ++i) {
      const NormBackwardVariant& v = table[i].variant;
      if (v.form != BackwardForm::kGatedRows) continue;
      for (const bool longer : {false, true}) {
        const int64_t vectors = int64_t{kBackwardWarpVectors} + (longer ? 1 : 0);
        NormBackwardDesc d = call_of(v, 4, vectors * 16 / dtype_bytes(v.dtype));
        d.gate.present = true;
        d.gate.gate = d.dy;
        NormBackwardPlan plan;
        Error error;
        EXPECT_EQ(plan_norm_backward_for(d, facts_of(*arch), table, static_cast<int32_t>(i), &plan,
                                         error) == FASTNORM_OK,
                  !longer || !v.is_one_warp())
            << table[i].name;
      }
      warps += v.is_one_warp() ? 1 : 0;
    }
    EXPECT_EQ(warps, 3) << arch->name;
  }
}

// What a gate needs for a held form. Other calls, and other architectures, take the general form.
TEST(NormBackwardPlan, HeldGates) {
  using D = NormBackwardDesc;
  const auto bytes = [](uintptr_t address) { return reinterpret_cast<std::byte*>(address); };
  const struct {
    const char* what;
    std::function<void(D&)> change;
    bool held;
  } cases[] = {
      {"silu", [](D&) {}, true},
      {"sigmoid", [](D& d) { d.gate.act = FASTNORM_ACTIVATION_SIGMOID; }, true},
      {"rounding", [](D& d) { d.rounding = FASTNORM_ROUND_EVERY_STEP; }, true},
      {"no dgate", [](D& d) { d.gate.dgate = {}; }, true},
      {"dgate over gate", [](D& d) { d.gate.dgate = d.gate.gate; }, true},
      {"dx over dy", [](D& d) { d.dx = d.dy, d.in_place = true; }, true},
      {"no weight", [](D& d) { d.weight = d.dweight = {}; }, true},
      {"f32 weight", [](D& d) { d.weight.dtype = Dtype::kF32; }, true},
      {"identity", [](D& d) { d.gate.act = FASTNORM_ACTIVATION_IDENTITY; }, false},
      {"tanh", [](D& d) { d.gate.act = FASTNORM_ACTIVATION_TANH; }, false},
      {"before the norm", [](D& d) { d.gate.before = true; }, true},
      {"before the norm, no weight", [](D& d) { d.gate.before = true, d.weight = d.dweight = {}; },
       true},
      {"before the norm, identity",
       [](D& d) { d.gate.before = true, d.gate.act = FASTNORM_ACTIVATION_IDENTITY; }, false},
      {"bias", [](D& d) { d.gate.bias = d.weight; }, false},
      {"dresidual_in", [](D& d) { d.dresidual_in = d.dy; }, false},
      {"dresidual", [](D& d) { d.dresidual = d.dy; }, false},
      {"no dx", [](D& d) { d.dx = {}; }, false},
      {"f32 gate", [](D& d) { d.gate.gate.dtype = Dtype::kF32; }, false},
      {"f32 dgate", [](D& d) { d.gate.dgate.dtype = Dtype::kF32; }, false},
      {"misaligned gate", [&](D& d) { d.gate.gate.data = bytes((uintptr_t{1} << 40) + 2); }, false},
      {"misaligned dgate", [](D& d) { d.gate.dgate.stride_bytes[0] += 2; }, false},
      {"layer", [](D& d) { d.kind = FASTNORM_NORM_LAYER, d.mean = d.rstd; }, false},
      {"one element of dy", [](D& d) { d.dy_element_bytes = 0; }, false},
  };
  for (const ArchSpec* arch : cuda::kArchs) {
    const auto table = cuda::table_of<cuda::NormBackwardFamily>(*arch);
    for (const auto& c : cases) {
      for (const int64_t n : {int64_t{128}, int64_t{4096}}) {
        NormBackwardVariant v;
        v.dtype = Dtype::kBF16, v.input = BackwardInput::kGated;
        D d = call_of(v, 4096, n);
        c.change(d);
        NormBackwardPlan plan;
        Error error;
        ASSERT_EQ(plan_norm_backward(d, facts_of(*arch), table, &plan, error), FASTNORM_OK)
            << c.what << " " << error.text;
        const bool held = plan.entry->variant.form == BackwardForm::kPersistent;
        EXPECT_EQ(held, c.held && arch == &cuda::kSm90) << c.what << " on " << arch->name;
        EXPECT_EQ(plan.entry->variant.input == BackwardInput::kGated, held) << c.what;
        if (held) {
          EXPECT_STREQ(plan.kind, "KIND(many, bf16, rms, gated)");
          EXPECT_EQ(plan.launches, d.dweight ? 2 : 1) << c.what;
        }
      }
    }
  }
}

// A gate before the norm keeps two floats of each element in shared memory, besides the ring.
TEST(NormBackwardPlan, GatesBeforeTheNormTakeSharedMemory) {
  const auto table = cuda::table_of<cuda::NormBackwardFamily>(cuda::kSm90);
  NormBackwardVariant v;
  v.dtype = Dtype::kBF16, v.input = BackwardInput::kGated;
  for (const int64_t n : {int64_t{128}, int64_t{1024}, int64_t{4096}, int64_t{8192}}) {
    int32_t shared[2] = {};
    NormBackwardPlan plan;
    for (const bool before : {false, true}) {
      NormBackwardDesc d = call_of(v, 4096, n);
      d.gate.before = before;
      Error error;
      ASSERT_EQ(plan_norm_backward(d, facts_of(cuda::kSm90), table, &plan, error), FASTNORM_OK);
      ASSERT_EQ(plan.entry->variant.input, BackwardInput::kGated);
      shared[before ? 1 : 0] = plan.steps[0].shared_bytes;
    }
    const NormBackwardVariant& held = plan.entry->variant;
    const int32_t kept = held.vectors * held.block_threads() * 8 * 2 * 4;
    EXPECT_EQ(shared[1], kept + (held.has_ring() ? shared[0] : 0)) << n;
    EXPECT_EQ(shared[1], most_backward_shared_bytes(held)) << n;
  }
}

// What a branch needs for a held form.
TEST(NormBackwardPlan, HeldBranches) {
  using D = NormBackwardDesc;
  const struct {
    const char* what;
    std::function<void(D&)> change;
    bool held;
    int launches = 2;
  } cases[] = {
      {"both weights", [](D&) {}, true},
      {"no dresidual_in", [](D& d) { d.dresidual_in = {}; }, true},
      {"one weight", [](D& d) { d.dweight = {}; }, true},
      {"no sums", [](D& d) { d.dweight = d.branch.dweight = {}; }, true, 1},
      {"no statistics", [](D& d) { d.rstd = d.branch.rstd = {}; }, true, 4},
      {"scale", [](D& d) { d.branch.alpha = 2, d.branch.sum_scale = d.x.data; }, true},
      {"no branch norm", [](D& d) { d.branch.normalise = false, d.branch.dweight = {}; }, false},
      {"layer branch", [](D& d) { d.branch.kind = FASTNORM_NORM_LAYER; }, false},
      {"layer", [](D& d) { d.kind = FASTNORM_NORM_LAYER; }, false},
      {"residual gate", [](D& d) { d.branch.residual_gate = d.weight; }, false},
      {"bias", [](D& d) { d.branch.dbias = d.dweight; }, false},
      {"no dbranch", [](D& d) { d.branch.dbranch = {}; }, false},
      {"no dx", [](D& d) { d.dx = {}; }, false},
      {"f32 x", [](D& d) { d.x.dtype = Dtype::kF32; }, false},
      {"f32 dx", [](D& d) { d.dx.dtype = Dtype::kF32; }, false},
      {"dresidual", [](D& d) { d.dresidual = d.dy; }, false},
      {"misaligned branch", [](D& d) { d.branch.branch.data += 2; }, false},
      {"misaligned dbranch", [](D& d) { d.branch.dbranch.stride_bytes[0] += 2; }, false},
      {"a weight for each row",
       [](D& d) { d.branch.weight.stride_bytes[0] = 16, d.branch.dweight = {}; }, false},
  };
  for (const ArchSpec* arch : cuda::kArchs) {
    const auto table = cuda::table_of<cuda::NormBackwardFamily>(*arch);
    for (const auto& c : cases) {
      for (const int64_t n : {int64_t{128}, int64_t{1024}, int64_t{8192}}) {
        NormBackwardVariant v;
        v.dtype = Dtype::kBF16, v.input = BackwardInput::kBranch;
        D d = call_of(v, 4096, n);
        c.change(d);
        NormBackwardPlan plan;
        Error error;
        ASSERT_EQ(plan_norm_backward(d, facts_of(*arch), table, &plan, error), FASTNORM_OK)
            << c.what << " " << error.text;
        const bool held = plan.entry->variant.form == BackwardForm::kPersistent;
        EXPECT_EQ(held, c.held && arch == &cuda::kSm90) << c.what << " on " << arch->name;
        EXPECT_EQ(plan.entry->variant.input == BackwardInput::kBranch, held) << c.what;
        if (!held) continue;
        EXPECT_STREQ(plan.kind, "KIND(many, bf16, rms, branch)");
        EXPECT_EQ(plan.launches, c.launches) << c.what;
        EXPECT_FALSE(plan.keeps_means) << c.what;
      }
    }
  }
}

// A branch times a residual gate is held, too.
TEST(NormBackwardPlan, HeldModulation) {
  using D = NormBackwardDesc;
  const struct {
    const char* what;
    std::function<void(D&)> change;
    bool held;
    int launches = 2;
  } cases[] = {
      {"all sums", [](D&) {}, true},
      {"no dresidual_in", [](D& d) { d.dresidual_in = {}; }, true},
      {"one sum", [](D& d) { d.dweight = d.dbias = {}; }, true},
      {"no sums", [](D& d) { d.dweight = d.dbias = d.branch.dresidual_gate = {}; }, true, 1},
      {"no statistics", [](D& d) { d.rstd = d.mean = {}; }, true, 3},
      {"act", [](D& d) { d.branch.act = FASTNORM_ACTIVATION_TANH; }, true},
      {"no residual gate", [](D& d) { d.branch.residual_gate = d.branch.dresidual_gate = {}; },
       false},
      {"rms", [](D& d) { d.kind = FASTNORM_NORM_RMS, d.dbias = {}; }, false},
      {"no branch", [](D& d) { d.branch.branch = {}, d.branch.dresidual_gate = {}; }, false},
      {"no dbranch", [](D& d) { d.branch.dbranch = {}; }, false},
      {"f32 x", [](D& d) { d.x.dtype = Dtype::kF32; }, false},
      {"misaligned branch", [](D& d) { d.branch.branch.data += 2; }, false},
      {"a gate for each row",
       [](D& d) { d.branch.residual_gate.stride_bytes[0] = 16, d.branch.dresidual_gate = {}; },
       false},
  };
  const auto table = cuda::table_of<cuda::NormBackwardFamily>(cuda::kSm90);
  for (const auto& c : cases) {
    for (const int64_t n : {int64_t{1152}, int64_t{3072}}) {
      NormBackwardVariant v;
      v.dtype = Dtype::kBF16, v.stat = Stat::kLayer, v.input = BackwardInput::kModulated;
      D d = call_of(v, 4096, n);
      c.change(d);
      NormBackwardPlan plan;
      Error error;
      ASSERT_EQ(plan_norm_backward(d, facts_of(cuda::kSm90), table, &plan, error), FASTNORM_OK)
          << c.what << " " << error.text;
      EXPECT_EQ(plan.entry->variant.input == BackwardInput::kModulated, c.held) << c.what;
      if (c.held) {
        EXPECT_STREQ(plan.kind, "KIND(many, bf16, layer, modulated)");
        EXPECT_EQ(plan.launches, c.launches) << c.what;
      }
    }
  }
}

// Without the statistics a general kernel with a gate computes them first.
TEST(NormBackwardPlan, HeldGatesWithoutStatistics) {
  const auto table = cuda::table_of<cuda::NormBackwardFamily>(cuda::kSm90);
  NormBackwardVariant v;
  v.dtype = Dtype::kBF16, v.input = BackwardInput::kGated;
  NormBackwardDesc d = call_of(v, 4096, 128);
  d.rstd = {};
  NormBackwardPlan plan;
  Error error;
  ASSERT_EQ(plan_norm_backward(d, facts_of(cuda::kSm90), table, &plan, error), FASTNORM_OK);
  ASSERT_EQ(plan.launches, 3);
  EXPECT_EQ(table[static_cast<size_t>(plan.steps[0].index)].variant.form, BackwardForm::kGatedRows);
  EXPECT_NE(plan.steps[0].bits & kBackwardStatisticsOnly, 0u);
  EXPECT_EQ(table[static_cast<size_t>(plan.steps[1].index)].variant.form,
            BackwardForm::kPersistent);
}

// A call with a branch keeps statistics and c1, c2 where sums need them, on every architecture.
TEST(NormBackwardPlan, BranchesHaveTheirForms) {
  for (const ArchSpec* arch : cuda::kArchs) {
    const auto table = cuda::table_of<cuda::NormBackwardFamily>(*arch);
    for (const int64_t n : {int64_t{64}, int64_t{4096}}) {
      NormBackwardVariant v;
      v.dtype = Dtype::kBF16;
      NormBackwardDesc d = call_of(v, 1000, n);
      d.branch.present = d.branch.normalise = true;
      d.branch.branch = d.branch.dbranch = d.dx;
      d.branch.kind = FASTNORM_NORM_LAYER;
      d.branch.rstd = d.branch.mean = d.rstd;
      NormBackwardPlan plan;
      Error error;
      const auto form_of = [&](int step) {
        return table[static_cast<size_t>(plan.steps[step].index)].variant.form;
      };
      const auto make = [&](int launches) {
        ASSERT_EQ(plan_norm_backward(d, facts_of(*arch), table, &plan, error), FASTNORM_OK)
            << error.text;
        ASSERT_EQ(plan.launches, launches) << arch->name;
      };
      make(3);  // dweight alone: no means are kept
      EXPECT_EQ(form_of(0), BackwardForm::kBranchColumns);
      EXPECT_EQ(form_of(1), BackwardForm::kBranchRows);
      EXPECT_EQ(form_of(2), BackwardForm::kFold);
      EXPECT_EQ(plan.entry->variant.threads, n == 64 ? 32 : 256);
      EXPECT_FALSE(plan.keeps_means);
      d.branch.dweight = d.branch.dbias = d.dweight;
      make(4);
      EXPECT_EQ(form_of(0), BackwardForm::kBranchRows);
      EXPECT_EQ(plan.steps[0].bits & kBackwardStatisticsOnly, kBackwardStatisticsOnly);
      EXPECT_EQ(plan.steps[2].bits & kBackwardKeptMeans, kBackwardKeptMeans);
      EXPECT_EQ(plan.steps[3].blocks_x, static_cast<uint32_t>(3 * n / kBackwardFoldColumns));
      d.rstd = d.branch.rstd = d.branch.mean = {};
      make(6);
      EXPECT_EQ(form_of(0), BackwardForm::kRows);
      EXPECT_EQ(form_of(1), BackwardForm::kRows);
      EXPECT_FALSE(plan.steps[0].of_branch);
      EXPECT_TRUE(plan.steps[1].of_branch);
      EXPECT_EQ(table[static_cast<size_t>(plan.steps[1].index)].variant.stat, Stat::kLayer);
      EXPECT_GE(plan.workspace_bytes, 1000u * (1 + 2 + 2) * sizeof(float));
      d.dx = {}, d.dweight = {}, d.branch.dweight = d.branch.dbias = {};
      make(3);
      EXPECT_EQ(form_of(2), BackwardForm::kBranchRows);
      EXPECT_EQ(plan.steps[2].bits & kBackwardKeptMeans, 0u);
    }
  }
}

// Without kernels that hold rows, a call takes the general form, on every architecture.
TEST(NormBackwardPlan, EveryArchitectureHasTheGeneralForm) {
  for (const ArchSpec* arch : cuda::kArchs) {
    for (int number = 0; number < 6; ++number) {
      NormBackwardVariant v;
      v.dtype = static_cast<Dtype>(number % 3), v.stat = static_cast<Stat>(number / 3);
      for (const int64_t n : {1, 100, 5001, 1 << 22}) {
        NormBackwardDesc d = call_of(v, 77, n);
        d.x.data += 2 * (n % 2) + 4;
        NormBackwardPlan plan;
        Error error;
        ASSERT_EQ(plan_norm_backward(d, facts_of(*arch),
                                     cuda::table_of<cuda::NormBackwardFamily>(*arch), &plan, error),
                  FASTNORM_OK)
            << error.text;
        EXPECT_EQ(plan.entry->variant.form, BackwardForm::kRows) << arch->name;
        EXPECT_EQ(plan.launches, 3);
        EXPECT_STREQ(plan.kind, "KIND(any, all, either, both)");
        EXPECT_EQ(std::string(plan.choice).find("ROWS("), 0u) << plan.choice;
        EXPECT_EQ(plan.steps[0].early, false);
        EXPECT_EQ(plan.steps[1].early, arch->capability >= 90) << arch->name;
      }
    }
  }
}

// A weight for each index of two leading dimensions that do not join, as adaLN's scale of each
// token of a batch: the same launches and workspace as with one such dimension.
TEST(NormBackwardPlan, ParametersMayVaryAlongSeveralDimensions) {
  for (const ArchSpec* arch : cuda::kArchs) {
    const auto table = cuda::table_of<cuda::NormBackwardFamily>(*arch);
    for (const int64_t shared : {1, 4}) {
      NormBackwardVariant variant;
      variant.dtype = Dtype::kBF16;
      NormBackwardDesc one = call_of(variant, 16 * shared, 256);
      one.shared_rows = one.outer[0] = shared, one.outer[1] = one.groups = 16;
      one.outer_rank = 2, one.shared_rank = 1;
      for (RowTensor* t : {&one.x, &one.dy, &one.dx, &one.rstd})
        t->stride_bytes[1] = shared * t->stride_bytes[0];
      one.weight.stride_bytes[1] = 512, one.dweight.stride_bytes[1] = 1024;
      NormBackwardDesc two = one;
      two.outer_rank = 3, two.outer[1] = two.outer[2] = 4;
      for (RowTensor* t : {&two.x, &two.dy, &two.dx, &two.rstd})
        t->stride_bytes[2] = 5 * t->stride_bytes[1];
      two.weight.stride_bytes[2] = 4 * 512, two.dweight.stride_bytes[2] = 4 * 1024;
      NormBackwardPlan of_one, of_two;
      Error error;
      ASSERT_EQ(plan_norm_backward(one, facts_of(*arch), table, &of_one, error), FASTNORM_OK);
      ASSERT_EQ(plan_norm_backward(two, facts_of(*arch), table, &of_two, error), FASTNORM_OK)
          << error.text;
      EXPECT_STREQ(of_two.kernel, of_one.kernel) << arch->name;
      EXPECT_EQ(of_two.launches, of_one.launches);
      EXPECT_EQ(of_two.workspace_bytes, of_one.workspace_bytes);
      EXPECT_EQ(of_two.steps[0].blocks_y, of_one.steps[0].blocks_y);
    }
  }
}

// A group of rows for each index of a grid's second dimension, which ends at 65535.
TEST(NormBackwardPlan, GroupsFitAGrid) {
  const ArchSpec& arch = cuda::kSm90;
  NormBackwardVariant variant;
  variant.dtype = Dtype::kBF16;
  for (const int64_t groups : {0xffff, 0x10000}) {
    NormBackwardDesc d = call_of(variant, groups, 256);
    d.shared_rows = d.outer[0] = 1, d.outer[1] = d.groups = groups;
    d.outer_rank = 2, d.shared_rank = 1;
    for (RowTensor* t : {&d.x, &d.dy, &d.dx, &d.rstd}) t->stride_bytes[1] = t->stride_bytes[0];
    d.weight.stride_bytes[1] = 512, d.dweight.stride_bytes[1] = 1024;
    NormBackwardPlan plan;
    Error error;
    ASSERT_EQ(plan_norm_backward(d, facts_of(arch), cuda::table_of<cuda::NormBackwardFamily>(arch),
                                 &plan, error),
              FASTNORM_OK)
        << error.text;
    EXPECT_EQ(plan.entry->variant.form == BackwardForm::kRows, groups > 0xffff) << plan.choice;
    EXPECT_LE(plan.steps[0].blocks_y, 0xffffu);
  }
}

TEST(NormBackwardPlan, Refusals) {
  const ArchSpec& arch = cuda::kSm90;
  const auto table = cuda::table_of<cuda::NormBackwardFamily>(arch);
  NormBackwardPlan plan;
  Error error;
  NormBackwardDesc d = call_of({}, int64_t{1} << 31, 8);
  EXPECT_EQ(plan_norm_backward(d, facts_of(arch), table, &plan, error), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(error.text).find("2147483648 rows"), std::string::npos) << error.text;
  d = call_of({}, (int64_t{1} << 31) - 1, 8);
  EXPECT_EQ(plan_norm_backward(d, facts_of(arch), table, &plan, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(plan_norm_backward(call_of({}, 4, 8), facts_of(arch), {}, &plan, error),
            FASTNORM_ERROR_UNSUPPORTED);
}

}  // namespace
}  // namespace fastnorm
