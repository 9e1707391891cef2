// fastnorm tune without a GPU: which kernels it measures, what it makes of times, and that contexts
// take its file.
#include "fastnorm/tuning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace fastnorm::tool {
namespace {

const Planner& planner() {
  static const Planner planner("sm_90");
  return planner;
}

std::string tile_of(const std::string& kernel) { return kernel.substr(kernel.rfind(' ') + 1); }

std::set<std::string> set_of(const std::vector<std::string>& kernels) {
  return {kernels.begin(), kernels.end()};
}

std::set<std::string> tiles(const BenchCase& c) {
  std::set<std::string> found;
  for (const std::string& kernel : planner().kernels(c)) found.insert(tile_of(kernel));
  return found;
}

// What a context with these rules runs a case on.
std::string kernel_with(const std::string& rules, const BenchCase& c) {
  const MemoryFile file(tuning_head("sm_90") + rules);
  Target target;
  target.device_type = FASTNORM_DEVICE_CUDA;
  target.dry_run_capability = 90;
  const ContextPtr context = make_context(target, 0, file.path());
  return kernel_of(context.get(), target, c);
}

// The first is the library's choice; all hold the row, each once.
void expect_kernels_of(const BenchCase& c, size_t least) {
  const std::vector<std::string> kernels = planner().kernels(c);
  EXPECT_EQ(kernels[0], planner().choice(c));
  EXPECT_EQ(set_of(kernels).size(), kernels.size());
  EXPECT_GE(kernels.size(), least);
  for (const std::string& kernel : kernels) {
    EXPECT_EQ(kind_of(kernel), kind_of(kernels[0])) << kernel;
    EXPECT_EQ(kernel_with(tuning_rule(1, kAllRows, c, kernel), c), kernel);
  }
}

TEST(Tuning, AsksTheLibraryWhatHoldsARow) {
  // One lean kernel of the lists holds these.
  const std::set<std::pair<std::string, int64_t>> lone = {{"rms_fp8", 4096}, {"add_fp8", 4096}};
  for (const char* op : {"rms", "add", "layer", "rms_fp8", "add_fp8", "rms_row_fp8", "layer_f32"}) {
    for (const int64_t rows : {1, 4096}) {
      for (const int64_t n : {128, 4096, 8192, 16384}) {
        SCOPED_TRACE(std::string(op) + " " + std::to_string(rows) + " x " + std::to_string(n));
        const size_t least = lone.contains({op, n}) ? 1 : 2;
        expect_kernels_of({op, "bf16", rows, n}, least);
        expect_kernels_of({op, "f16", rows, n}, least);
      }
    }
  }
  expect_kernels_of({"rms", "bf16", 4096, 4099}, 1);
  EXPECT_TRUE(tiles({"rms", "bf16", 64, 8192}).contains("128x2x4")) << "clusters";
  EXPECT_EQ(
      planner().choice({"rms", "bf16", 4096, 4099}).find("bf16 plain rms once store unaligned"),
      0u);
  EXPECT_EQ(
      planner().choice({"rms_fp8", "f16", 4096, 4096}).find("f16 plain rms once static vector"),
      0u);
}

TEST(Tuning, F32WeightsHaveKernelsOfTheirOwn) {
  const std::string f32 = "bf16 plain layer f32 store vector ";
  EXPECT_EQ(planner().choice({"layer_f32", "bf16", 128, 4096}).find(f32 + "bare "), 0u);
  EXPECT_EQ(kind_of(f32 + "64x2"), kind_of("bf16 plain layer once store vector bare 64x2"));
  EXPECT_NE(kind_of(f32 + "64x2"), kind_of("bf16 plain layer any store any 64x4"));
  EXPECT_EQ(planner().choice({"rms_f32", "f32", 128, 4096}),
            planner().choice({"rms", "f32", 128, 4096}));
}

// A kernel with dynamic scales serves scales per row and per block. Each has rules of its own.
TEST(Tuning, ScalesOfBlocksHaveRulesOfTheirOwn) {
  const std::string tile = "bf16 plain rms once quant vector 256x4";
  const std::string rows =
                        "KIND(b16, plain, rms, own_dtype, per_row, aligned, lean, rows)\n"
                        "ROWS(4096, 4096, 1, kAll, 256, 4, 1, full)\n",
                    blocks =
                        "KIND(b16, plain, rms, own_dtype, per_block, aligned, lean, rows)\n"
                        "ROWS(4096, 4096, 1, kAll, 256, 4, 1, full)\n";
  for (const char* op : {"rms_block_fp8", "rms_mxfp8", "rms_nvfp4"}) {
    const BenchCase c = {op, "bf16", 4096, 4096};
    expect_kernels_of(c, 3);
    EXPECT_EQ(tuning_rule(1, kAllRows, c, tile), blocks);
    EXPECT_EQ(kernel_with(tuning_rule(1, kAllRows, c, tile), c), tile);
  }
  const BenchCase row = {"rms_row_fp8", "bf16", 4096, 4096},
                  block = {"rms_block_fp8", "bf16", 4096, 4096},
                  mx = {"rms_mxfp8", "bf16", 4096, 4096};
  const std::string choice = planner().choice(row),
                    rules = tuning_rules({{row, choice, tile, 2, 1}});
  EXPECT_EQ(rules, rows);
  EXPECT_EQ(kernel_with(rules, row), tile);
  EXPECT_EQ(kernel_with(rules, block), choice);
  // Blocks of any size and type of scale share theirs, which are those of the first.
  EXPECT_EQ(tuning_rules({{block, choice, tile, 2, 1}, {mx, tile, choice, 2, 1}}), blocks);
  EXPECT_EQ(
      planner().choice({"layer_block_fp8", "bf16", 1, 4096}).find("bf16 plain layer once quant"),
      0u);
  EXPECT_EQ(planner().choice({"add_block_fp8", "bf16", 1, 4096}).find("bf16 add rms once quant"),
            0u);
}

// On a GPU the choice is its context's, whatever the planner would do by itself.
TEST(Tuning, TheChoiceIsTheContexts) {
  const BenchCase c = {"rms", "bf16", 4096, 4096};
  const std::string other = "bf16 plain rms once store vector 256x4";
  ASSERT_NE(planner().choice(c), other);
  const MemoryFile file(tuning_head("sm_90") + tuning_rule(4096, 4096, c, other));
  Target target;
  target.device_type = FASTNORM_DEVICE_CUDA;
  target.dry_run_capability = 90;
  const ContextPtr context = make_context(target, 0, file.path());
  const Planner on_gpu("sm_90", context.get(), target);
  EXPECT_EQ(on_gpu.choice(c), other);
  EXPECT_EQ(on_gpu.kernels(c)[0], other);
  EXPECT_EQ(set_of(on_gpu.kernels(c)), set_of(planner().kernels(c)));
}

TEST(Tuning, TakesTheFastestIfItIsFasterTwice) {
  const BenchCase c = {"rms", "bf16", 64, 8192};
  const std::string choice = planner().choice(c);
  const std::vector<std::string> kernels = planner().kernels(c);
  ASSERT_GE(kernels.size(), 3u);
  std::map<std::string, std::vector<double>> times;  // one after another; the last stays
  std::map<std::string, size_t> calls;
  const Measure measure = [&](const std::string& kernel) -> std::optional<double> {
    const std::vector<double>& of = times.at(kernel);
    const double us = of[std::min(calls[kernel]++, of.size() - 1)];
    return us > 0 ? std::optional(us) : std::nullopt;
  };
  const auto best = [&](double gain, std::vector<double> first, std::vector<double> second,
                        std::vector<double> third) {
    times.clear();
    calls.clear();
    for (const std::string& kernel : kernels) times[kernel] = {99};
    times[kernels[0]] = std::move(first);
    times[kernels[1]] = std::move(second);
    times[kernels[2]] = std::move(third);
    return find_best(planner(), c, gain, measure);
  };
  Finding f = best(0.02, {10}, {9}, {8});
  EXPECT_EQ(f.best, kernels[2]);
  EXPECT_EQ(f.choice, choice);
  EXPECT_EQ(f.choice_us, 10);
  EXPECT_EQ(f.best_us, 8);
  EXPECT_EQ(calls[kernels[0]], 2u);
  EXPECT_EQ(calls[kernels[1]], 1u);
  EXPECT_EQ(best(0.02, {10}, {9.9}, {11}).best, choice);  // not by enough
  EXPECT_EQ(calls[kernels[0]], 1u);
  EXPECT_EQ(best(0, {10}, {9.9}, {11}).best, kernels[1]);
  EXPECT_EQ(best(0.02, {10}, {8, 10}, {11}).best, choice);  // by luck
  EXPECT_EQ(best(0.02, {10, 8}, {9}, {11}).best, choice);
  EXPECT_EQ(best(0.02, {10}, {0}, {9}).best, kernels[2]);  // one that cannot run
  f = best(0.02, {10}, {0}, {0});
  EXPECT_EQ(f.best, choice);
  EXPECT_EQ(f.best_us, 10);
}

TEST(Tuning, WritesRulesThatContextsTake) {
  const std::string few = "bf16 plain rms once store vector 512x4",
                    many = "bf16 plain rms once store vector 128x4";
  const auto found = [](int64_t rows, int64_t n, const std::string& choice,
                        const std::string& best) {
    return Finding{{"rms", "bf16", rows, n}, choice, best, 2, 1};
  };
  // Nothing faster, nothing to say.
  EXPECT_EQ(tuning_rules({}), "");
  EXPECT_EQ(tuning_rules({found(1, 4096, many, many)}), "");
  const std::string rules = tuning_rules(
      {found(1, 4096, many, few), found(16, 4096, many, few), found(128, 4096, many, many),
       found(512, 4096, many, few), found(4096, 4096, few, many), found(16, 4088, few, many)});
  const std::string kind = "KIND(b16, plain, rms, own_dtype, y, aligned, lean, rows)\n";
  EXPECT_EQ(rules, kind + "ROWS(4096, 4096, 1, 16, 512, 4, 1, full)\n" + kind +
                       "ROWS(4096, 4096, 129, 512, 512, 4, 1, full)\n" + kind +
                       "ROWS(4096, 4096, 513, kAll, 128, 4, 1, full)\n" + kind +
                       "ROWS(4088, 4088, 1, kAll, 128, 4, 1, full)\n");
  // Where no rule is, the library's own kernels are lean.
  const auto kernel = [&](int64_t rows) {
    std::string name = kernel_with(rules, {"rms", "bf16", rows, 4096});
    if (const size_t bare = name.find(" bare"); bare != std::string::npos)
      name.erase(bare, name.find(' ', bare + 1) - bare);
    return name;
  };
  for (const int64_t rows : {1, 2, 16, 129, 512}) EXPECT_EQ(kernel(rows), few) << rows;
  for (const int64_t rows : {17, 128, 513, 4096, 100000}) EXPECT_EQ(kernel(rows), many) << rows;
  EXPECT_EQ(kernel_with(rules, {"rms", "bf16", 3, 4088}), many);
}

// A backward pass is measured on kernels of every form. A rule's job follows from the form, and
// from what the call wants.
TEST(Tuning, TheBackwardPassHasRulesOfItsOwn) {
  const BenchCase sums = {"rms_backward", "bf16", 64, 4096}, dx = {"rms_dx", "bf16", 64, 4096},
                  add = {"add_backward", "bf16", 64, 16384}, odd = {"layer_dx", "f16", 64, 4097};
  const std::string few = "norm_backward bf16 rms few 256x4 1x0",
                    many = "norm_backward bf16 rms persistent 256x2 2x3",
                    cluster = "norm_backward bf16 rms add persistent 512x2x2 1x2",
                    general = "norm_backward bf16 rms rows 32";
  for (const std::string& kernel :
       {few, many, general, std::string("norm_backward bf16 rms rows 256")})
    EXPECT_TRUE(set_of(planner().kernels(sums)).contains(kernel)) << kernel;
  EXPECT_EQ(tuning_rule(1, 64, sums, few),
            "KIND(few, bf16, rms, plain)\nROWS(4096, 4096, 1, 64, 256, 4, 1, 1, 0)\n");
  EXPECT_EQ(tuning_rule(65, kAllRows, sums, many),
            "KIND(many, bf16, rms, plain)\nROWS(4096, 4096, 65, kAll, 256, 2, 1, 2, 3)\n");
  EXPECT_EQ(tuning_rule(1, 64, add, cluster),
            "KIND(many, bf16, rms, add)\nROWS(16384, 16384, 1, 64, 512, 2, 2, 1, 2)\n");
  EXPECT_EQ(tuning_rule(1, 64, sums, general),
            "KIND(any, bf16, rms, plain)\nROWS(4096, 4096, 1, 64, 32, 0, 1, 4, 0)\n");
  EXPECT_EQ(tuning_rule(1, 64, dx, few),
            "KIND(alone, bf16, rms, plain)\nROWS(4096, 4096, 1, 64, 256, 4, 1, 1, 0)\n");
  // dx alone reads each row once on the kernels for few rows: where they are, others do not count.
  for (const std::string& kernel : planner().kernels(dx))
    EXPECT_NE(kernel.find(" few "), std::string::npos) << kernel;
  EXPECT_EQ(planner().kernels(odd), (std::vector<std::string>{"norm_backward f16 layer rows 256",
                                                              "norm_backward f16 layer rows 32"}));
}

TEST(Tuning, RulesOfTheBackwardPassMakeAFile) {
  const auto found = [](const std::string& op, int64_t rows, const std::string& choice,
                        const std::string& best) {
    return Finding{{op, "bf16", rows, 4096}, choice, best, 2, 1};
  };
  const std::string few = "norm_backward bf16 rms few 256x2 1x0",
                    many = "norm_backward bf16 rms persistent 256x2 2x3";
  const std::string rules =
      tuning_rules({found("rms_backward", 64, few, many), found("rms_backward", 512, few, few),
                    found("rms_backward", 8192, many, few)});
  EXPECT_EQ(rules,
            "KIND(many, bf16, rms, plain)\nROWS(4096, 4096, 1, 64, 256, 2, 1, 2, 3)\n"
            "KIND(few, bf16, rms, plain)\nROWS(4096, 4096, 513, kAll, 256, 2, 1, 1, 0)\n");
  const auto kernel = [&](int64_t rows) {
    return kernel_with(rules, {"rms_backward", "bf16", rows, 4096});
  };
  EXPECT_EQ(kernel(1), many);
  EXPECT_EQ(kernel(64), many);
  EXPECT_EQ(kernel(65), planner().choice({"rms_backward", "bf16", 65, 4096}));
  EXPECT_EQ(kernel(100000), few);
  // The forward's rules and these share a file.
  const Finding forward = {{"rms", "bf16", 4096, 4096},
                           planner().choice({"rms", "bf16", 4096, 4096}),
                           "bf16 plain rms once store vector 256x4",
                           2,
                           1};
  const std::string both = tuning_rules({forward, found("rms_backward", 64, few, many)});
  EXPECT_EQ(kernel_with(both, forward.c), forward.best);
  EXPECT_EQ(kernel_with(both, {"rms_backward", "bf16", 1, 4096}), many);
}

// The shapes that are measured by default: rules for the last kernel of each make a file, and every
// case gets its kernel by it.
TEST(Tuning, EveryKernelThatIsMeasuredCanBeHad) {
  std::vector<Finding> findings;
  std::vector<std::string> ops = bench_ops();
  for (const std::string& op : backward_ops()) ops.push_back(op);
  for (const std::string& op : ops) {
    for (const int64_t n : {64, 500, 1024, 4096, 5001, 14336, 16384, 65536}) {
      if (op == "rms_nvfp4" && n % 2 != 0) continue;  // which the library refuses
      for (const int64_t rows : {1, 128, 1024, 4096}) {
        const BenchCase c = {op, "bf16", rows, n};
        const std::vector<std::string> kernels = planner().kernels(c);
        EXPECT_EQ(std::set<std::string>(kernels.begin(), kernels.end()).size(), kernels.size());
        findings.push_back({c, kernels.front(), kernels.back(), 2, 1});
      }
    }
  }
  const std::string rules = tuning_rules(findings);
  for (const Finding& f : findings) EXPECT_EQ(kernel_with(rules, f.c), f.best);
}

}  // namespace
}  // namespace fastnorm::tool
