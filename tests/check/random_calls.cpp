#include "check/random_calls.h"

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "check/norm_backward_case.h"
#include "check/run_call.h"
#include "support/norm_heads_backward_call.h"
#include "support/norm_heads_call.h"
#include "support/norm_stages_call.h"

namespace fastnorm::check {
namespace {

using support::CallKind;
using support::CheckedCall;
using support::GradientCallKind;
using support::StagesKind;

// The calls of one family. A filter sees NAME and a line's words behind the family.
class RandomCalls {
 public:
  using Draw = std::function<std::string(uint64_t seed, bool gpu)>;

  RandomCalls(const char* name, std::span<Target* const> targets, const Options& options,
              Counts* counts)
      : name_(name), targets_(targets), options_(options), counts_(*counts) {}

  // A filter may name the family, or more of its calls than that.
  bool wanted() const {
    return options_.wants(name_ + " ") || options_.filter.find(name_ + " ") != std::string::npos;
  }

  // On the kernels that planning chooses.
  void run(uint64_t count, const Draw& draw) {
    const auto every = static_cast<uint64_t>(options_.every);
    for (uint64_t seed = options_.first(count); seed < count; seed += every)
      run_line(draw(seed, gpu()));
  }

  // Each kernel of a GPU, `most` times.
  void run_each(int most, const Draw& draw) {
    constexpr uint64_t kFirst = 100000, kSeeds = 20000;
    std::vector<int> left(kernels(draw(kFirst, gpu())).size(), most);
    for (uint64_t seed = kFirst; seed < kFirst + kSeeds; ++seed) {
      std::vector<int32_t> wanted;
      for (size_t i = 0; i < left.size(); ++i) {
        if (left[i] != 0) wanted.push_back(static_cast<int32_t>(i));
      }
      if (wanted.empty()) break;
      const std::string line = draw(seed, gpu());
      if (!wants(line)) continue;
      CheckedCall call(line);
      const std::vector<int32_t> able = able_kernels(call, *targets_[0], wanted);
      if (able.empty()) continue;
      --left[static_cast<size_t>(able[0])];
      check(call, able[0]);
    }
    for (const int count : left) never_ += count == most ? 1 : 0;
  }

  // On the chosen kernel, and with `all` on each of a GPU that can.
  void run_line(const std::string& line, bool all = false) {
    if (!wants(line)) return;
    CheckedCall call(line);
    check(call, kChosen);
    std::vector<int32_t> others;
    for (size_t i = 0; all && i < kernels(line).size(); ++i)
      others.push_back(static_cast<int32_t>(i));
    for (const int32_t kernel : able_kernels(call, *targets_[0], others)) check(call, kernel);
  }

  void count(const Target& target, bool good, const char* what) {
    good ? ++counts_.passed : ++counts_.failed;
    if (!good) std::printf("FAIL %s %s: %s\n", target.name.c_str(), name_.c_str(), what);
  }

  // The comparison must be able to fail: some of these calls differ if sums have another order.
  void count_orders(const Draw& draw) {
    for (Target* target : targets_) {
      bool tells = false;
      for (uint64_t seed = 0; seed < 200 && !tells; ++seed) {
        CheckedCall call(draw(seed, gpu()));
        call.expect_results(wrong_order(target->order));
        tells = !run_call(call, *target, kChosen).empty();
      }
      count(*target, tells, "a wrong order does not show");
    }
  }

  int64_t cases() const { return cases_; }
  int64_t bounded() const { return bounded_; }
  int64_t never() const { return never_; }  // kernels that no call ran on

  void print() const {
    for (const Target* target : targets_) {
      std::printf("%s: %lld cases of %s", target->name.c_str(), static_cast<long long>(cases_),
                  name_.c_str());
      if (bounded_ != 0)
        std::printf(", %lld of them with bounds", static_cast<long long>(bounded_));
      if (never_ != 0) std::printf(", %lld kernels never ran", static_cast<long long>(never_));
      std::printf("\n");
    }
  }

 private:
  bool gpu() const { return targets_[0]->cuda; }
  bool wants(const std::string& line) const {
    return options_.wants(name_ + line.substr(line.find(' ')));
  }
  // That a line may be run on.
  std::vector<std::string> kernels(const std::string& line) const {
    return kernels_for(line.substr(0, line.find(' ')), *targets_[0]);
  }
  void check(CheckedCall& call, int32_t kernel) {
    ++cases_;
    call.expect_results(targets_[0]->order);
    bounded_ += call.bounded() != 0 ? 1 : 0;
    for (Target* target : targets_)
      report_call(call, name_.c_str(), *target, kernel, run_call(call, *target, kernel), &counts_);
  }

  const std::string name_;
  const std::span<Target* const> targets_;
  const Options& options_;
  Counts& counts_;
  int64_t cases_ = 0, bounded_ = 0, never_ = 0;
};

RandomCalls::Draw heads(CallKind kind) {
  return [kind](uint64_t seed, bool gpu) { return support::draw_norm_heads(seed, kind, gpu); };
}
RandomCalls::Draw gradients(GradientCallKind kind) {
  return [kind](uint64_t seed, bool gpu) {
    return support::draw_norm_heads_backward(seed, kind, gpu);
  };
}
RandomCalls::Draw stages(StagesKind kind) {
  return [kind](uint64_t seed, bool gpu) { return support::draw_norm_stages(seed, kind, gpu); };
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

}  // namespace

void check_norm_heads(std::span<Target* const> targets, const Options& options, Counts* counts) {
  RandomCalls calls("norm_heads", targets, options, counts);
  if (!calls.wanted()) return;
  const bool few = options.reduced;
  calls.run(few ? 200 : 1500, heads(CallKind::kAny));
  calls.run(few ? 100 : 1500, heads(CallKind::kAligned));
  calls.run(few ? 100 : 500, heads(CallKind::kMore));
  calls.run(few ? 60 : 500, heads(CallKind::kAcross));
  calls.run(few ? 100 : 1000, heads(CallKind::kLatents));
  calls.run(few ? 2 : 40, heads(CallKind::kMany));
  calls.run(few ? 1 : 10, heads(CallKind::kLarge));
  run_far(calls, targets, few ? 4 : 16, counts);
  if (options.each) {
    calls.run_each(few ? 2 : 20, [](uint64_t seed, bool gpu) {
      const CallKind kind = seed % 4 == 0   ? CallKind::kAcross
                            : seed % 8 == 1 ? CallKind::kLatents
                                            : CallKind::kAligned;
      return support::draw_norm_heads(seed, kind, gpu);
    });
  }
  if (calls.cases() == 0) return;
  calls.count_orders(heads(CallKind::kAny));
  calls.print();
}

void check_norm_heads_backward(std::span<Target* const> targets, const Options& options,
                               Counts* counts) {
  RandomCalls calls("norm_heads_backward", targets, options, counts);
  if (!calls.wanted()) return;
  const bool few = options.reduced;
  calls.run(few ? 150 : 1500, gradients(GradientCallKind::kAny));
  calls.run(few ? 4 : 60, gradients(GradientCallKind::kMany));
  calls.run(few ? 20 : 150, gradients(GradientCallKind::kPlain));
  calls.run(few ? 40 : 400, gradients(GradientCallKind::kAligned));
  calls.run(few ? 1 : 6, gradients(GradientCallKind::kAlignedMany));
  if (calls.cases() == 0) return;
  calls.count_orders(gradients(GradientCallKind::kAny));
  calls.print();
}

void check_norm_backward(std::span<Target* const> targets, const Options& options, Counts* counts) {
  RandomCalls calls("norm_backward", targets, options, counts);
  const bool gpu = targets[0]->cuda;
  // A call in which wrong orders show: those of sums along rows, and of sums over rows.
  NormBackwardCase telling;
  telling.batch = 200;
  telling.n = 1024;
  telling.has_dbias = true;
  telling.kind = ref::Kind::kLayer;
  telling.seed = 7;
  calls.run_line(telling.line(gpu));
  const std::vector<NormBackwardCase> all = make_norm_backward_cases(gpu, options);
  for (size_t i = options.first(all.size()); i < all.size();
       i += static_cast<size_t>(options.every))
    calls.run_line(all[i].line(gpu));
  if (calls.cases() == 0) return;
  for (const bool rows : {false, true}) {
    NormBackwardCase half = telling;
    half.has_dx = rows;
    half.has_dweight = half.has_dbias = !rows;
    calls.count_orders([&](uint64_t, bool on_gpu) { return half.line(on_gpu); });
  }
  calls.print();
}

void check_norm_stages(std::span<Target* const> targets, const Options& options, Counts* counts) {
  RandomCalls calls("norm_stages", targets, options, counts);
  if (!calls.wanted()) return;
  const bool few = options.reduced;
  calls.run(few ? 300 : 3000, stages(StagesKind::kAny));
  for (const StagesKind kind :
       {StagesKind::kAligned, StagesKind::kGated, StagesKind::kSandwich, StagesKind::kModulated,
        StagesKind::kScaled, StagesKind::kMixed, StagesKind::kRotated})
    calls.run(targets[0]->cuda && !few ? 1000 : 40, stages(kind));
  if (options.each) {
    calls.run_each(few ? 2 : 20, [](uint64_t seed, bool gpu) {
      return support::draw_norm_stages(seed, static_cast<StagesKind>(seed % support::kStagesKinds),
                                       gpu);
    });
  }
  if (calls.cases() == 0) return;
  calls.count_orders(stages(StagesKind::kAny));
  for (const Target* target : targets) {
    if (calls.cases() >= 100)
      calls.count(*target, calls.bounded() * 8 >= calls.cases(), "few calls have bounds");
    if (options.each && options.every == 1 && options.filter.empty())
      calls.count(*target, calls.never() == 0, "a kernel ran no call");
  }
  calls.print();
}

}  // namespace fastnorm::check
