#include "check/sweep.h"

#include <algorithm>
#include <optional>
#include <string>

#include "check/batch.h"
#include "check/cases.h"
#include "core/common/pdl.h"

namespace fastnorm::check {
namespace {

constexpr int64_t kBatchBytes = 24 << 20;
constexpr int kShown = 8;  // printed findings of a kernel

// Runs one kernel's cases.
class KernelSweep {
 public:
  KernelSweep(std::span<Target> targets, const Options& options, int32_t index, SameBits* same_bits,
              Counts* counts)
      : targets_(targets),
        options_(options),
        index_(index),
        entry_(targets[0].devices[0]->table<NormEntry>()[static_cast<size_t>(index)]),
        same_bits_(same_bits),
        counts_(counts) {}

  // The number of cases that ran on each target.
  int64_t run() {
    std::vector<PlacedCase> batch;
    std::optional<Case> left_out;
    // Counts cases that the kernel supports; each kernel begins at another one.
    int number = index_ + options_.from;
    for (const Case& what :
         make_cases(entry_, targets_[0].cuda, options_.reduced, ref::hash(7, index_))) {
      const int64_t begin = batch.empty() ? 0 : batch.back().end;
      PlacedCase placed = place(what, begin);
      if (!serves(placed)) continue;
      if (number++ % options_.every != 0) {
        left_out = what;
        continue;
      }
      if (begin > 0 && placed.end > kBatchBytes) {
        run_batch(std::move(batch));
        batch.clear();
        placed = place(what, 0);
      }
      batch.push_back(std::move(placed));
    }
    // Every kernel runs, even if all of its cases were skipped.
    if (batch.empty() && left_out) batch.push_back(place(*left_out, 0));
    if (!batch.empty()) run_batch(std::move(batch));
    return ran_;
  }

 private:
  // Describes and plans a case for memory at `block`. Returns the plan's status.
  fastnorm_status plan(const PlacedCase& placed, std::byte* block, const Device& device,
                       NormDesc* desc, NormPlan* plan, Error& error) const {
    const DeviceFacts& facts = device.facts;
    if (describe(placed, block, facts.device_type, facts.device_id, desc, error) != FASTNORM_OK) {
      error.status = FASTNORM_ERROR_INTERNAL;  // the case is wrong, not merely unsupported
      return error.status;
    }
    return make_plan_for_entry(*desc, facts, device.table<NormEntry>(), index_, plan, error);
  }

  // True if the kernel supports the case. A case that nothing supports is a failure.
  bool serves(const PlacedCase& placed) {
    alignas(256) static std::byte anywhere[256];
    NormDesc desc;
    NormPlan p;
    Error error;
    const fastnorm_status status =
        plan(placed, anywhere, *targets_[0].devices[0], &desc, &p, error);
    if (status != FASTNORM_OK && status != FASTNORM_ERROR_UNSUPPORTED) {
      fail(targets_[0], placed, error.text);
    }
    return status == FASTNORM_OK;
  }

  void fail(const Target& target, const PlacedCase& placed, const std::string& why) {
    ++counts_->failed;
    if (shown_++ < kShown) {
      std::printf("FAIL %s: \"%s\": %s: %s\n", target.name.c_str(), entry_.name, why.c_str(),
                  placed.what.text().c_str());
    }
  }

  void run_batch(std::vector<PlacedCase> cases) {
    Batch batch(std::move(cases), targets_[0].order, options_.threads);
    const size_t count = batch.cases().size();
    std::vector<std::vector<bool>> bad(targets_.size(), std::vector<bool>(count));
    const int devices = static_cast<int>(targets_[0].devices.size());
    const int passes = targets_[0].cuda ? std::max(2, devices) : options_.reduced ? 2 : 3;
    for (int pass = 0; pass < passes; ++pass) {
      const std::byte* const before = batch.fill(pass);
      for (size_t t = 0; t < targets_.size(); ++t) {
        const std::vector<std::string> findings = run_pass(targets_[t], batch, before, pass);
        for (size_t i = 0; i < count; ++i) {
          if (findings[i].empty() || bad[t][i]) continue;
          bad[t][i] = true;
          fail(targets_[t], batch.cases()[i], findings[i] + " (run " + std::to_string(pass) + ")");
        }
      }
    }
    ran_ += static_cast<int64_t>(count);
    for (const std::vector<bool>& of_target : bad)
      counts_->passed += std::count(of_target.begin(), of_target.end(), false);
  }

  // Returns the error of each case, or "".
  std::vector<std::string> run_pass(Target& target, Batch& batch, const std::byte* before,
                                    int pass) {
    std::byte* block = target.memory->block(batch.bytes());
    target.memory->upload(before, batch.bytes());
    std::vector<std::string> findings(batch.cases().size());
    // Alone, then several in a call: both must give the same bits.
    const std::span<const PlacedCase> cases = batch.cases();
    const size_t together = pass == 0 ? 1 : kMaxCalls;
    for (size_t i = 0; i < cases.size(); i += together) {
      const size_t count = std::min(together, cases.size() - i);
      launch(target, cases.subspan(i, count), block, pass, &findings[i]);
    }
    target.memory->download(batch.after(), batch.bytes());
    const std::vector<std::string> differences = batch.compare(same_bits_);
    for (size_t i = 0; i < findings.size(); ++i) {
      if (findings[i].empty()) findings[i] = differences[i];
    }
    return findings;
  }

  // Runs at most kMaxCalls cases in one call, and sets the error of each.
  void launch(Target& target, std::span<const PlacedCase> cases, std::byte* block, int pass,
              std::string* findings) {
    Device& device = *target.devices[static_cast<size_t>(pass) % target.devices.size()];
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
      descs[count].flags = with_pdl(descs[count].flags, device.facts.pdl);
      if (pass > 0) vary(target, pass, &descs[count], &plans[count]);
      calls[count] = {&descs[count], &plans[count]};
      ++count;
    }
    if (device.run(std::span<const NormCall>(calls, count), nullptr, target.memory->stream(pass),
                   error) != FASTNORM_OK) {
      for (size_t i = 0; i < cases.size(); ++i) findings[i] = error.text;
    }
  }

  // Varies choices that must not change results: kinds of stores and loads, how rows are split,
  // what is prefetched, when kernels start.
  static void vary(const Target& target, int pass, NormDesc* desc, NormPlan* p) {
    if (target.cuda) {
      p->stream_loads = !p->stream_loads;
      // A shorter row at an arbitrary address may contain no aligned 16 bytes. No plan prefetches
      // it.
      if (desc->outer_rank == 1 && desc->n >= 16)
        p->prefetch_rows = static_cast<uint32_t>(1 + desc->n % 3);
      desc->flags = FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER;
      // In two such runs, each case has constant weights once.
      if ((desc->n % 3 == 0) == (pass == 1) && !target.memory->is_late())
        desc->flags |= FASTNORM_NORM_PDL_CONSTANT_WEIGHTS;
    } else {
      p->non_temporal = !p->non_temporal;
      p->rows_per_block = 1;
      p->blocks = static_cast<uint64_t>(desc->rows);
    }
  }

  const std::span<Target> targets_;
  const Options& options_;
  const int32_t index_;
  const NormEntry& entry_;
  SameBits* const same_bits_;
  Counts* const counts_;
  int64_t ran_ = 0;
  int shown_ = 0;
};

}  // namespace

void sweep(std::span<Target> targets, const Options& options, SameBits* same_bits, Counts* counts) {
  const Target& first = targets[0];
  std::string names = first.name;
  for (const Target& target : targets.subspan(1)) names += ", " + target.name;
  const std::span<const NormEntry> table = first.devices[0]->table<NormEntry>();
  int64_t wanted = 0, covered = 0, absent = 0, cases = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    const NormEntry& entry = table[i];
    if (!options.wants(entry.name)) continue;
    if (entry.tile.blocks > first.devices[0]->facts.max_cluster_blocks && first.cuda) {
      ++counts->skipped;
      std::printf("SKIP %s \"%s\": this device cannot schedule clusters of %d blocks\n",
                  names.c_str(), entry.name, entry.tile.blocks);
      continue;
    }
    if (!first.has(i)) {
      ++absent;
      continue;
    }
    ++wanted;
    const int64_t ran =
        KernelSweep(targets, options, static_cast<int32_t>(i), same_bits, counts).run();
    cases += ran;
    if (ran > 0) {
      ++covered;
    } else {
      ++counts->failed;
      std::printf("FAIL %s: no case runs on \"%s\"\n", names.c_str(), entry.name);
    }
  }
  std::printf("coverage: %lld of %lld entries on %s, %lld cases\n", static_cast<long long>(covered),
              static_cast<long long>(wanted), names.c_str(), static_cast<long long>(cases));
  if (absent > 0) {
    ++counts->skipped;
    std::printf(
        "SKIP %s: %lld kernels are not in this build, which has others of their keys "
        "(-Dsimt_sample=1: all)\n",
        names.c_str(), static_cast<long long>(absent));
  }
  if (wanted == 0) {
    ++counts->failed;
    std::printf("FAIL %s: no kernel's name contains \"%s\"\n", names.c_str(),
                options.filter.c_str());
  }
  std::fflush(stdout);
}

}  // namespace fastnorm::check
