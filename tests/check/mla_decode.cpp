#include "check/mla_decode.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numbers>
#include <string>
#include <vector>

#include "check/mla_decode_placed.h"
#include "check/parallel.h"
#include "core/common/pdl.h"
#include "core/mla_decode/plan.h"
#include "ref/data.h"
#include "ref/mla_decode_ref.h"

namespace fastnorm::check {
namespace {

// The most products that the reference computes for a case. Rows beyond that are compared between
// runs.
constexpr int64_t kMostProducts = 40'000'000, kMostProductsCpu = 4'000'000;
constexpr int64_t kLeastRows = 12;
constexpr size_t kGuardBytes = 256;  // after the workspace

struct RowId {
  size_t request;
  int32_t token;  // of the request
  int32_t head;
};

// What a wrong kernel might compute. The comparison must detect each of these.
enum class Mistake { kNone, kScale, kLastToken, kMask, kNoRope, kLseBase, kNoSink, kNoExtra };

struct Expected {
  int64_t allowed = 0;
  ref::MlaDecodeRow row;
};

// The rows of a request, or those that a new token of a sparse call selects.
std::vector<float> latents_of(const MlaPlaced& placed, const RowId& id, Mistake mistake) {
  if (!placed.what().sparse()) return placed.latents(id.request);
  return placed.selected(id.request, id.token, mistake != Mistake::kNoExtra);
}

Expected expect(const MlaPlaced& placed, const RowId& id, const std::vector<float>& latents,
                Mistake mistake) {
  const MlaCase& c = placed.what();
  const bool causal = mistake == Mistake::kMask ? !c.causal : c.causal;
  const double scale = c.sm_scale * (mistake == Mistake::kScale ? 1.02 : 1.0);
  Expected e;
  e.allowed = c.sparse() ? static_cast<int64_t>(latents.size()) / ref::kMlaWidth
                         : placed.allowed(id.request, id.token, causal);
  if (mistake == Mistake::kLastToken) e.allowed = std::max<int64_t>(0, e.allowed - 1);
  std::vector<float> q = placed.query(placed.first_token()[id.request] + id.token, id.head);
  if (mistake == Mistake::kNoRope)
    std::fill(q.begin() + (c.format == ref::MlaFormat::k584 ? 448 : ref::kMlaLatent), q.end(),
              0.0f);
  e.row = ref::mla_decode_row(q.data(), latents.data(), e.allowed, scale);
  if (c.sinks != MlaSinks::kNone && mistake != Mistake::kNoSink)
    ref::add_mla_sink(placed.sink(id.head), &e.row);
  const bool to_base_2 = c.base_2 != (mistake == Mistake::kLseBase);
  if (to_base_2) e.row.lse *= std::numbers::log2e;
  return e;
}

class MlaRun {
 public:
  MlaRun(const MlaCase& what, const Target& target, const Options& options)
      : placed_(what), options_(options) {
    choose_rows(target.cuda);
  }

  // Returns "", or what is wrong.
  std::string run(Target& target);

  // The number of mistakes that the comparison did not detect, of those that change this case's
  // results.
  int undetected() const;

 private:
  void choose_rows(bool cuda);
  std::string run_once(Target& target, int pass, bool reuse_plan);
  std::string untouched(int pass);
  std::string compare() const;
  std::string compare_row(const RowId& id, const Expected& e) const;
  std::string compare_others() const;
  std::string cosine(const std::vector<Expected>& expected) const;
  std::vector<float> output(const RowId& id) const;
  float lse(const RowId& id) const;
  int64_t token(const RowId& id) const {
    return placed_.first_token()[id.request] + int64_t{id.token};
  }

  const MlaPlaced placed_;
  const Options& options_;
  std::vector<RowId> rows_;       // compared with the reference; by request
  std::vector<std::byte> image_;  // before the run
  std::vector<std::byte> after_;
  std::vector<std::byte> first_;  // outputs of the first run
};

void MlaRun::choose_rows(bool cuda) {
  const MlaCase& c = placed_.what();
  std::vector<RowId> all;
  for (size_t b = 0; b < c.requests.size(); ++b) {
    for (int32_t t = 0; t < c.requests[b].s_q; ++t) {
      for (int32_t h = 0; h < c.heads; ++h) all.push_back({b, t, h});
    }
  }
  if (all.empty()) return;
  const auto count = static_cast<int64_t>(all.size());
  const int64_t each = std::max<int64_t>(1, c.macs() / count);
  const int64_t wanted = std::max(kLeastRows, (cuda ? kMostProducts : kMostProductsCpu) / each);
  if (wanted >= count) {
    rows_ = all;
    return;
  }
  ref::Random random(c.seed);
  std::vector<size_t> chosen = {0, all.size() - 1};
  for (int64_t i = 2; i < wanted; ++i) chosen.push_back(static_cast<size_t>(random.below(count)));
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  for (const size_t i : chosen) rows_.push_back(all[i]);
}

std::vector<float> MlaRun::output(const RowId& id) const {
  std::vector<float> row(ref::kMlaLatent);
  ref::decode_row(placed_.what().dtype, after_.data() + placed_.o().at(token(id), id.head),
                  row.data(), ref::kMlaLatent);
  return row;
}

float MlaRun::lse(const RowId& id) const {
  float value = 0;
  std::memcpy(&value, after_.data() + placed_.lse().at(token(id), id.head), 4);
  return value;
}

std::string MlaRun::run_once(Target& target, int pass, bool reuse_plan) {
  Device& device = *target.devices[static_cast<size_t>(pass) % target.devices.size()];
  const CheckedDevice where = {device.facts.device_type, device.facts.device_id};
  const size_t bytes = placed_.bytes();
  Error error;
  MlaDecodeDesc desc;
  MlaDecodePlan plan;
  // The workspace's size does not depend on the address.
  if (placed_.describe(reinterpret_cast<std::byte*>(kGuardBytes), where, reuse_plan, &desc,
                       error) != FASTNORM_OK ||
      plan_mla_decode(desc, device.facts, &plan, error) != FASTNORM_OK) {
    return std::string("refused: ") + error.text;
  }
  const size_t workspace_at = (bytes + 255) / 256 * 256;
  const size_t all = workspace_at + plan.workspace_bytes + kGuardBytes;
  std::byte* block = target.memory->block(all);
  if (!reuse_plan) {
    image_ = placed_.fill(pass);
    image_.resize(all, pass % 2 == 0 ? std::byte{0xff} : std::byte{0x7f});
    target.memory->upload(image_.data(), all);
  }
  if (placed_.describe(block, where, reuse_plan, &desc, error) != FASTNORM_OK)
    return std::string("failed: ") + error.text;
  desc.pdl = with_pdl(desc.pdl, device.facts.pdl);
  if (plan_mla_decode(desc, device.facts, &plan, error) != FASTNORM_OK ||
      (plan.launches != 0 && device.run(MlaDecodeCall{&desc, &plan}, block + workspace_at,
                                        target.memory->stream(pass), error) != FASTNORM_OK)) {
    return std::string("failed: ") + error.text;
  }
  after_.resize(all);
  target.memory->download(after_.data(), all);
  // The workspace may hold anything.
  std::memcpy(after_.data() + workspace_at, image_.data() + workspace_at, plan.workspace_bytes);
  return "";
}

// Only the outputs may have changed. Keeps the outputs of the first run, and compares later ones
// with them.
std::string MlaRun::untouched(int pass) {
  const MlaCase& c = placed_.what();
  std::vector<std::byte> outputs;
  const size_t row_bytes = static_cast<size_t>(ref::kMlaLatent * ref::bytes_of(c.dtype));
  const auto take = [&](int64_t at, size_t bytes) {
    const auto from = static_cast<size_t>(at);
    outputs.insert(outputs.end(), after_.begin() + at,
                   after_.begin() + at + static_cast<int64_t>(bytes));
    std::memcpy(image_.data() + from, after_.data() + from, bytes);
  };
  for (int64_t t = 0; t < placed_.first_token().back(); ++t) {
    for (int64_t h = 0; h < c.heads; ++h) {
      take(placed_.o().at(t, h), row_bytes);
      if (c.lse) take(placed_.lse().at(t, h), 4);
    }
  }
  if (image_ != after_) {
    const auto at = std::mismatch(image_.begin(), image_.end(), after_.begin()).first;
    return "byte " + std::to_string(at - image_.begin()) +
           " of the block, which is no output, changed";
  }
  if (pass == 0) {
    first_ = outputs;
  } else if (outputs != first_) {
    const auto at = std::mismatch(outputs.begin(), outputs.end(), first_.begin()).first;
    return "run " + std::to_string(pass) + " differs from the first in byte " +
           std::to_string(at - outputs.begin()) + " of the outputs";
  }
  return "";
}

std::string MlaRun::compare_row(const RowId& id, const Expected& e) const {
  const MlaCase& c = placed_.what();
  const std::vector<float> o = output(id);
  char text[200];
  const auto where = [&] {
    return "request " + std::to_string(id.request) + " token " + std::to_string(id.token) +
           " head " + std::to_string(id.head) + ": ";
  };
  // Half a unit of the output's rounding, and one of the probabilities' relative to the magnitude.
  // Scores are f32. An error of a score is a relative error of its probability.
  const double unit = c.dtype == ref::Type::kBF16  ? 0x1p-8
                      : c.dtype == ref::Type::kF16 ? 0x1p-10
                                                   : 0x1p-18;
  const double score_error = e.row.score_magnitude * 0x1p-21;
  for (size_t i = 0; i < o.size(); ++i) {
    const double expected = e.row.o[i];
    double bound =
        (std::fabs(expected) + e.row.magnitude[i]) * unit + e.row.magnitude[i] * score_error;
    // Subnormal outputs and probabilities have an absolute error. Exponentials below the least
    // normal f32 may be 0.
    bound += (c.dtype == ref::Type::kF16 ? 0x1p-25 : 0x1p-126) * (1 + e.row.faint[i]);
    if (std::fabs(double{o[i]} - expected) <= bound) continue;  // false for NaN
    std::snprintf(text, sizeof text, "o[%zu] is %.9g, expected %.9g within %.3g", i,
                  static_cast<double>(o[i]), expected, bound);
    return where() + text;
  }
  if (!c.lse) return "";
  const double found = static_cast<double>(lse(id)), expected = e.row.lse;
  const double lse_bound = std::max(1e-6, std::fabs(expected) * 8.01 / 65536) + 2 * score_error;
  const bool same = e.allowed == 0 ? found == expected : std::fabs(found - expected) <= lse_bound;
  if (same) return "";
  std::snprintf(text, sizeof text, "lse is %.9g, expected %.9g", found, expected);
  return where() + text;
}

std::string MlaRun::cosine(const std::vector<Expected>& expected) const {
  const MlaCase& c = placed_.what();
  // If a sink leaves next to nothing of o, only the bounds of each element say something.
  if (c.dtype == ref::Type::kF32 || c.sinks == MlaSinks::kExtreme) return "";
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const std::vector<float> o = output(rows_[i]);
    for (size_t k = 0; k < o.size(); ++k) {
      const double x = double{o[k]}, y = expected[i].row.o[k];
      xy += x * y;
      xx += x * x;
      yy += y * y;
    }
  }
  if (xx == 0 && yy == 0) return "";
  const double difference = 1 - 2 * xy / (xx + yy);
  if (difference <= 5e-6) return "";
  return "cosine difference is " + std::to_string(difference);
}

// Rows that are not compared with the reference must be written and finite.
std::string MlaRun::compare_others() const {
  const MlaCase& c = placed_.what();
  for (size_t b = 0; b < c.requests.size(); ++b) {
    for (int32_t t = 0; t < c.requests[b].s_q; ++t) {
      const bool empty = placed_.allowed(b, t, c.causal) == 0;
      for (int32_t h = 0; h < c.heads; ++h) {
        const RowId id = {b, t, h};
        for (const float v : output(id)) {
          if (empty ? v != 0 : !(std::fabs(v) < 16))
            return "request " + std::to_string(b) + " token " + std::to_string(t) + " head " +
                   std::to_string(h) + " has " + std::to_string(v);
        }
        if (c.lse && (empty ? lse(id) != -INFINITY : !std::isfinite(lse(id))))
          return "request " + std::to_string(b) + " token " + std::to_string(t) + " head " +
                 std::to_string(h) + " has lse " + std::to_string(lse(id));
      }
    }
  }
  return "";
}

std::string MlaRun::compare() const {
  std::vector<Expected> expected(rows_.size());
  std::vector<std::string> findings(rows_.size());
  // Rows of one request, or of one new token of a sparse call, share what they attend to.
  const bool sparse = placed_.what().sparse();
  std::vector<size_t> starts;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (i == 0 || rows_[i].request != rows_[i - 1].request ||
        (sparse && rows_[i].token != rows_[i - 1].token))
      starts.push_back(i);
  }
  starts.push_back(rows_.size());
  for (size_t s = 0; s + 1 < starts.size(); ++s) {
    const std::vector<float> latents = latents_of(placed_, rows_[starts[s]], Mistake::kNone);
    const size_t from = starts[s];
    parallel_for(static_cast<int64_t>(starts[s + 1] - from), options_.threads, [&](int64_t k, int) {
      const size_t i = from + static_cast<size_t>(k);
      expected[i] = expect(placed_, rows_[i], latents, Mistake::kNone);
      findings[i] = compare_row(rows_[i], expected[i]);
    });
  }
  for (const std::string& finding : findings) {
    if (!finding.empty()) return finding;
  }
  const std::string all = cosine(expected);
  return all.empty() ? compare_others() : all;
}

std::string MlaRun::run(Target& target) {
  const int passes = std::max<int>(2, static_cast<int>(target.devices.size()));
  for (int pass = 0; pass < passes; ++pass) {
    std::string finding = run_once(target, pass, false);
    if (finding.empty()) finding = untouched(pass);
    if (finding.empty() && pass == 0) finding = compare();
    if (!finding.empty()) return finding;
  }
  // The workspace still has the plan of the last run.
  if (!target.cuda) return "";
  std::string finding = run_once(target, passes - 1, true);
  if (finding.empty()) finding = untouched(passes);
  return finding.empty() ? "" : "with reuse_plan: " + finding;
}

int MlaRun::undetected() const {
  const MlaCase& c = placed_.what();
  std::vector<Mistake> mistakes = {Mistake::kScale, Mistake::kLastToken, Mistake::kNoRope,
                                   Mistake::kLseBase};
  if (!c.sparse()) mistakes.push_back(Mistake::kMask);
  if (c.sinks != MlaSinks::kNone) mistakes.push_back(Mistake::kNoSink);
  if (c.extra.given()) mistakes.push_back(Mistake::kNoExtra);
  int missed = 0;
  for (const Mistake mistake : mistakes) {
    bool found = false;
    for (const RowId& id : rows_) {
      if (found) break;
      const std::vector<float> latents = latents_of(placed_, id, mistake);
      found = !compare_row(id, expect(placed_, id, latents, mistake)).empty();
    }
    missed += found ? 0 : 1;
  }
  return missed;
}

// A case that detects every mistake.
MlaCase telling_case(ref::Type dtype) {
  MlaCase c;
  c.group = "mistakes";
  c.dtype = dtype;
  c.requests = {{70, 2}, {5, 2}};
  c.heads = 4;
  c.causal = true;
  c.q_scale = 8;
  c.seed = 7;
  return c;
}

// Rows that indices select from two caches, with sinks: it detects every mistake of such calls.
MlaCase telling_sparse_case(ref::MlaFormat format) {
  MlaCase c = telling_case(ref::Type::kBF16);
  c.requests = {{0, 2}, {0, 2}};
  c.causal = false;
  c.q_scale = 2;
  c.format = format;
  c.sinks = MlaSinks::kNormal;
  c.selected = {40, 5, 7, MlaSelection::Lengths::kOfToken};
  c.extra = {40, 3, 20, MlaSelection::Lengths::kOfRequest};
  return c;
}

void check_one(const MlaCase& c, Target& target, const Options& options, Counts* counts) {
  const std::string finding = MlaRun(c, target, options).run(target);
  finding.empty() ? ++counts->passed : ++counts->failed;
  if (!finding.empty())
    std::printf("FAIL %s %s: %s\n", target.name.c_str(), c.text().c_str(), finding.c_str());
}

}  // namespace

void check_mla_decode(Target& target, const Options& options, Counts* counts) {
  const Counts before = *counts;
  std::vector<MlaCase> telling = {telling_case(ref::Type::kBF16), telling_case(ref::Type::kF16)};
  for (const ref::MlaFormat format :
       {ref::MlaFormat::kNone, ref::MlaFormat::k656, ref::MlaFormat::k576, ref::MlaFormat::k584}) {
    telling.push_back(telling_sparse_case(format));
  }
  for (const MlaCase& c : telling) {
    if (!options.wants(c.text())) continue;
    MlaRun run(c, target, options);
    const std::string finding = run.run(target);
    const int missed = finding.empty() ? run.undetected() : 0;
    finding.empty() && missed == 0 ? ++counts->passed : ++counts->failed;
    if (!finding.empty() || missed != 0)
      std::printf("FAIL %s %s: %s, %d mistakes were not found\n", target.name.c_str(),
                  c.text().c_str(), finding.c_str(), missed);
  }
  for (const MlaCase& c : make_mla_cases(target.cuda, options)) {
    if (options.wants(c.text())) check_one(c, target, options, counts);
  }
  const auto cases =
      static_cast<long long>(counts->passed + counts->failed - before.passed - before.failed);
  if (cases > 0) std::printf("%s: %lld cases of mla_decode\n", target.name.c_str(), cases);
}

}  // namespace fastnorm::check
