#include "check/sweep.h"

#include <algorithm>
#include <string>

#include "check/batch.h"
#include "check/cases.h"

namespace fastnorm::check {
namespace {

constexpr int64_t kBatchBytes = 24 << 20;
constexpr int kShown = 8;  // findings of a kernel that are printed

// Runs one kernel's cases.
class KernelSweep {
 public:
  KernelSweep(Target& target, const Options& options, int32_t index, SameBits* same_bits,
              Counts* counts)
      : target_(target),
        options_(options),
        index_(index),
        entry_(target.devices[0]->norm_table()[static_cast<size_t>(index)]),
        same_bits_(same_bits),
        counts_(counts) {}

  // Number of cases that ran.
  int64_t run() {
    std::vector<PlacedCase> batch;
    int number = index_;  // of cases that are served; another one is the first for each kernel
    for (const Case& what :
         make_cases(entry_, target_.cuda, options_.reduced, ref::hash(7, index_))) {
      const int64_t begin = batch.empty() ? 0 : batch.back().end;
      PlacedCase placed = place(what, begin);
      if (!serves(placed) || number++ % options_.every != 0) continue;
      if (begin > 0 && placed.end > kBatchBytes) {
        run_batch(std::move(batch));
        batch.clear();
        placed = place(what, 0);
      }
      batch.push_back(std::move(placed));
    }
    if (!batch.empty()) run_batch(std::move(batch));
    return ran_;
  }

 private:
  // Describes and plans a case for memory at `block`; the status is the plan's.
  fastnorm_status plan(const PlacedCase& placed, std::byte* block, const Device& device,
                       NormDesc* desc, NormPlan* plan, Error& error) const {
    const DeviceFacts& facts = device.facts;
    if (describe(placed, block, facts.device_type, facts.device_id, desc, error) != FASTNORM_OK) {
      error.status = FASTNORM_ERROR_INTERNAL;  // the case is wrong, not beyond the kernel
      return error.status;
    }
    return make_plan_for_entry(*desc, facts, device.norm_table(), index_, plan, error);
  }

  // True if the kernel can run the case; a case that nothing could run is a failure.
  bool serves(const PlacedCase& placed) {
    alignas(256) static std::byte anywhere[256];
    NormDesc desc;
    NormPlan p;
    Error error;
    const fastnorm_status status = plan(placed, anywhere, *target_.devices[0], &desc, &p, error);
    if (status != FASTNORM_OK && status != FASTNORM_ERROR_UNSUPPORTED) {
      fail(placed, error.text);
    }
    return status == FASTNORM_OK;
  }

  void fail(const PlacedCase& placed, const std::string& why) {
    ++counts_->failed;
    if (shown_++ < kShown) {
      std::printf("FAIL %s: \"%s\": %s: %s\n", target_.name.c_str(), entry_.name, why.c_str(),
                  placed.what.text().c_str());
    }
  }

  void run_batch(std::vector<PlacedCase> cases) {
    Batch batch(std::move(cases), target_.order, options_.threads);
    std::vector<bool> bad(batch.cases().size());
    const int passes = target_.cuda       ? std::max(2, static_cast<int>(target_.devices.size()))
                       : options_.reduced ? 2
                                          : 3;
    for (int pass = 0; pass < passes; ++pass) {
      std::byte* block = target_.memory->block(batch.bytes());
      target_.memory->upload(batch.fill(pass), batch.bytes());
      std::vector<std::string> findings(batch.cases().size());
      // Alone, then several to a call: kernels that take several at once must give the same.
      const std::span<const PlacedCase> cases = batch.cases();
      const size_t together = pass == 0 ? 1 : kMaxCalls;
      for (size_t i = 0; i < cases.size(); i += together) {
        const size_t count = std::min(together, cases.size() - i);
        launch(cases.subspan(i, count), block, pass, &findings[i]);
      }
      target_.memory->download(batch.after(), batch.bytes());
      const std::vector<std::string> differences = batch.compare(same_bits_);
      for (size_t i = 0; i < findings.size(); ++i) {
        if (findings[i].empty()) findings[i] = differences[i];
        if (findings[i].empty() || bad[i]) continue;
        bad[i] = true;
        fail(batch.cases()[i], findings[i] + " (run " + std::to_string(pass) + ")");
      }
    }
    ran_ += static_cast<int64_t>(bad.size());
    counts_->passed += std::count(bad.begin(), bad.end(), false);
  }

  // Runs kMaxCalls cases at the most in one call; sets what is to be said of each.
  void launch(std::span<const PlacedCase> cases, std::byte* block, int pass,
              std::string* findings) {
    Device& device = *target_.devices[static_cast<size_t>(pass) % target_.devices.size()];
    NormDesc descs[kMaxCalls];
    NormPlan plans[kMaxCalls];
    NormCall calls[kMaxCalls];
    size_t count = 0;
    Error error;
    for (size_t i = 0; i < cases.size(); ++i) {
      if (plan(cases[i], block, device, &descs[count], &plans[count], error) != FASTNORM_OK) {
        findings[i] = error.text;
        continue;
      }
      if (pass > 0) vary(&descs[count], &plans[count]);
      calls[count] = {&descs[count], &plans[count]};
      ++count;
    }
    if (device.run_norm({calls, count}, nullptr, target_.memory->stream(pass), error) !=
        FASTNORM_OK) {
      for (size_t i = 0; i < cases.size(); ++i) findings[i] = error.text;
    }
  }

  // Choices that must not show: where stores and loads go, how rows are split, when kernels start.
  void vary(NormDesc* desc, NormPlan* p) const {
    if (target_.cuda) {
      p->stream_loads = !p->stream_loads;
      desc->flags = FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER;
      if (desc->n % 3 == 0) desc->flags |= FASTNORM_NORM_PDL_CONSTANT_COLUMNS;
    } else {
      p->non_temporal = !p->non_temporal;
      p->rows_per_block = 1;
      p->blocks = static_cast<uint64_t>(desc->rows);
    }
  }

  Target& target_;
  const Options& options_;
  const int32_t index_;
  const NormEntry& entry_;
  SameBits* const same_bits_;
  Counts* const counts_;
  int64_t ran_ = 0;
  int shown_ = 0;
};

}  // namespace

void sweep(Target& target, const Options& options, SameBits* same_bits, Counts* counts) {
  const std::span<const NormEntry> table = target.devices[0]->norm_table();
  int64_t wanted = 0, covered = 0, cases = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    const NormEntry& entry = table[i];
    if (!options.wants(entry.name)) continue;
    if (entry.tile.blocks > target.devices[0]->facts.max_cluster_blocks && target.cuda) {
      ++counts->skipped;
      std::printf("SKIP %s \"%s\": this device cannot schedule clusters of %d blocks\n",
                  target.name.c_str(), entry.name, entry.tile.blocks);
      continue;
    }
    ++wanted;
    const int64_t ran =
        KernelSweep(target, options, static_cast<int32_t>(i), same_bits, counts).run();
    cases += ran;
    if (ran > 0) {
      ++covered;
    } else {
      ++counts->failed;
      std::printf("FAIL %s: no case runs on \"%s\"\n", target.name.c_str(), entry.name);
    }
  }
  std::printf("coverage: %lld of %lld entries on %s, %lld cases\n", static_cast<long long>(covered),
              static_cast<long long>(wanted), target.name.c_str(), static_cast<long long>(cases));
  if (wanted == 0) {
    ++counts->failed;
    std::printf("FAIL %s: no kernel's name contains \"%s\"\n", target.name.c_str(),
                options.filter.c_str());
  }
  std::fflush(stdout);
}

}  // namespace fastnorm::check
