#include "check/random_calls.h"

#include <cstdio>

namespace fastnorm::check {

using support::CheckedCall;

void RandomCalls::run(uint64_t count, const Draw& draw) {
  const auto every = static_cast<uint64_t>(options_.every);
  for (uint64_t seed = options_.first(count); seed < count; seed += every)
    run_line(draw(seed, gpu()));
}

void RandomCalls::run_each(int most, const Draw& draw) {
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

void RandomCalls::run_line(const std::string& line, bool all) {
  if (!wants(line)) return;
  CheckedCall call(line);
  check(call, kChosen);
  std::vector<int32_t> others;
  for (size_t i = 0; all && i < kernels(line).size(); ++i)
    others.push_back(static_cast<int32_t>(i));
  for (const int32_t kernel : able_kernels(call, *targets_[0], others)) check(call, kernel);
}

void RandomCalls::count(const Target& target, bool good, const char* what) {
  good ? ++counts_.passed : ++counts_.failed;
  if (!good) std::printf("FAIL %s %s: %s\n", target.name.c_str(), name_.c_str(), what);
}

void RandomCalls::count_orders(const Draw& draw) {
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

void RandomCalls::print() const {
  for (const Target* target : targets_) {
    std::printf("%s: %lld cases of %s", target->name.c_str(), static_cast<long long>(cases_),
                name_.c_str());
    if (bounded_ != 0) std::printf(", %lld of them with bounds", static_cast<long long>(bounded_));
    if (never_ != 0) std::printf(", %lld kernels never ran", static_cast<long long>(never_));
    std::printf("\n");
  }
}

void RandomCalls::check(CheckedCall& call, int32_t kernel) {
  ++cases_;
  call.expect_results(targets_[0]->order);
  bounded_ += call.bounded() != 0 ? 1 : 0;
  for (Target* target : targets_)
    report_call(call, name_.c_str(), *target, kernel, run_call(call, *target, kernel), &counts_);
}

}  // namespace fastnorm::check
