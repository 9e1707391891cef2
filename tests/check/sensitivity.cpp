// Would the sweep detect a wrong order of summation? With bf16 rows, wrong folds must differ from a
// kernel's result.
#include <cstring>
#include <string>

#include "check/cases.h"
#include "check/parallel.h"
#include "check/placed_case.h"
#include "check/sweep.h"
#include "ref/norm_model.h"

namespace fastnorm::check {
namespace {

constexpr int64_t kRows = 1024;
constexpr double kLeastShare = 0.05;

// kRows random rows with a stored rstd.
Case make_case(int64_t n) {
  Case what;
  Content& c = what.content;
  c.n = n;
  c.options.dtype = c.options.sum_dtype = ref::Type::kBF16;
  c.options.eps = 1e-6f;
  c.pattern = static_cast<int>(ref::Pattern::kNormal);
  Layout& l = what.layout;
  l.outer[0] = kRows;
  l.x.stride[0] = l.y.stride[0] = n;
  l.rstd.stride[0] = 1;
  l.store_rstd = true;
  return what;
}

std::vector<float> rows_of_data(int64_t n, int threads) {
  std::vector<float> values(static_cast<size_t>(kRows * n));
  parallel_for(kRows, threads, [&](int64_t r, int) {
    ref::fill_row(ref::Pattern::kNormal, ref::Type::kBF16, ref::hash(4242, n, r),
                  &values[static_cast<size_t>(r * n)], n);
  });
  return values;
}

// Computes rstd of each row on the target. Returns an error text, or "".
std::string run(Target& target, const PlacedCase& placed, const std::vector<float>& values,
                std::vector<float>* rstd) {
  const auto bytes = static_cast<size_t>(placed.end);
  std::vector<std::byte> memory(bytes);
  ref::encode_row(ref::Type::kBF16, values.data(), &memory[static_cast<size_t>(placed.x.base)],
                  static_cast<int64_t>(values.size()));
  std::byte* block = target.memory->block(bytes);
  target.memory->upload(memory.data(), bytes);
  Device& device = *target.devices[0];
  NormDesc desc;
  NormPlan plan;
  Error error;
  if (describe(placed, block, device.facts.device_type, device.facts.device_id, &desc, error) !=
          FASTNORM_OK ||
      make_plan(desc, device.facts, device.table<NormEntry>(), &plan, error) != FASTNORM_OK) {
    return error.text;
  }
  const NormCall call = {&desc, &plan};
  if (device.run(std::span(&call, 1), nullptr, target.memory->stream(0), error) != FASTNORM_OK)
    return error.text;
  target.memory->download(memory.data(), bytes);
  rstd->resize(kRows);
  std::memcpy(rstd->data(), &memory[static_cast<size_t>(placed.rstd.base)], kRows * sizeof(float));
  return "";
}

// The share of rows whose rstd differs from the model's.
double share_of_differences(const Content& content, const std::vector<float>& values,
                            const std::vector<float>& rstd, ref::Order order, int threads) {
  std::vector<char> differs(kRows);
  parallel_for(kRows, threads, [&](int64_t r, int) {
    ref::ModelScratch scratch;
    ref::NormResult result;
    ref::NormRow row;
    row.n = content.n;
    row.x = &values[static_cast<size_t>(r * content.n)];
    ref::norm_model(content.options, row, order, &scratch, &result);
    differs[static_cast<size_t>(r)] = result.rstd != rstd[static_cast<size_t>(r)];
  });
  int64_t count = 0;
  for (const char d : differs) count += d;
  return static_cast<double>(count) / kRows;
}

}  // namespace

void check_sensitivity(Target& target, const Options& options, Counts* counts) {
  const ref::Order lowest_first =
      target.cuda ? ref::Order::kGpuLowestFirst : ref::Order::kCpuLowestFirst;
  const auto count = [&](bool ok, const std::string& text) {
    ok ? ++counts->passed : ++counts->failed;
    if (!ok) std::printf("FAIL %s: sensitivity: %s\n", target.name.c_str(), text.c_str());
  };
  for (const int64_t n : {64, 576, 4096}) {
    if (options.reduced && n > 64) break;
    const PlacedCase placed = place(make_case(n), 0);
    const std::vector<float> values = rows_of_data(n, options.threads);
    std::vector<float> rstd;
    const std::string error = run(target, placed, values, &rstd);
    count(error.empty(), error);
    if (!error.empty()) continue;
    const auto share = [&](ref::Order order) {
      return share_of_differences(placed.what.content, values, rstd, order, options.threads);
    };
    const double right = share(target.order), folded = share(lowest_first),
                 sequential = share(ref::Order::kSequential);
    std::printf(
        "sensitivity: %s, n %lld: %.1f %% of rows differ from a fold that begins at the lowest "
        "digit, %.1f %% "
        "from a sequential sum, %.1f %% from the contract\n",
        target.name.c_str(), static_cast<long long>(n), 100 * folded, 100 * sequential,
        100 * right);
    const std::string at = " at n " + std::to_string(n);
    count(right == 0, "the kernel's order is not the contract's" + at);
    count(folded >= kLeastShare, "a fold from the lowest digit is hardly noticed" + at);
    count(sequential >= kLeastShare, "a sequential sum is hardly noticed" + at);
  }
}

}  // namespace fastnorm::check
