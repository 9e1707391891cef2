// The CPU as a backend: one device.
#include "core/backend.h"

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/common/check.h"
#include "core/mla_decode/check.h"
#include "core/norm/check_quant.h"
#include "core/norm/check_stages.h"
#include "core/norm_backward/cpu_plan.h"
#include "core/norm_heads/check.h"
#include "cpu/common/fp_mode.h"
#include "cpu/common/machine.h"
#include "cpu/common/parallel.h"
#include "cpu/isa.h"
#include "cpu/mla_decode/run.h"
#include "cpu/norm/run.h"
#include "cpu/norm_backward/run.h"
#include "cpu/norm_heads/run.h"
#include "cpu/norm_heads_backward/run.h"
#include "cpu/norm_stages/run.h"
#include "cpu/peer/link.h"

namespace fastnorm {
namespace cpu {
namespace {

DeviceFacts facts_of(const IsaKernels& isa, const fastnorm_context_options& options) {
  DeviceFacts facts;
  facts.device_type = FASTNORM_DEVICE_CPU;
  facts.vector_bytes = isa.vector_bytes;
  facts.l2_bytes = l2_bytes();
  // The caller's loop has an unknown number of threads. Planning assumes one for each processor.
  facts.threads = options.parallel_for != nullptr ? processors()
                  : options.num_threads > 1       ? options.num_threads
                                                  : 1;
  return facts;
}

// A well-mixed number for each row: the finaliser of splitmix64, from "Fast splittable pseudorandom
// number generators" by Steele, Lea and Flood.
constexpr uint64_t hash(int64_t row) {
  auto h = static_cast<uint64_t>(row) + 0x9e3779b97f4a7c15;
  h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9;
  h = (h ^ h >> 27) * 0x94d049bb133111eb;
  return h ^ h >> 31;
}

// Detects a parallel_for that drops or repeats work on [0, count). It adds hash(end) - hash(begin)
// over all ranges. For an exact partition the sum is hash(count) - hash(0). Any other set of ranges
// has that sum only by chance.
struct CountedTask {
  fastnorm_range_fn run;
  void* task;
  int64_t count;
  std::atomic<int64_t> done{0};
  std::atomic<uint64_t> ends{0};
};

void run_counted_range(void* task, int64_t begin, int64_t end) {
  auto& t = *static_cast<CountedTask*>(task);
  if (begin < 0 || begin >= end || end > t.count) return;
  t.run(t.task, begin, end);
  t.done.fetch_add(end - begin, std::memory_order_relaxed);
  t.ends.fetch_add(hash(end) - hash(begin), std::memory_order_relaxed);
}

// A dry run's end: the work of making a task counts, and is not optimised away.
template <class Task>
fastnorm_status keep(const Task& task) {
  asm volatile("" ::"m"(task));
  return FASTNORM_OK;
}

class CpuDevice final : public Device {
 public:
  CpuDevice(const IsaKernels& isa, bool avx512_bf16, const fastnorm_context_options& options)
      : Device(facts_of(isa, options), {kNormTable, {}, {}, {}, {}}),
        isa_(isa),
        norm_kernels_(norm_kernels(isa, avx512_bf16)),
        parallel_for_(options.parallel_for),
        parallel_user_(options.parallel_user),
        dry_run_((options.flags & FASTNORM_CONTEXT_DRY_RUN) != 0) {
    if (parallel_for_ == nullptr && options.num_threads > 1) pool_.emplace(options.num_threads);
  }

  fastnorm_status prepare(const AnyCall&, Error&) override { return FASTNORM_OK; }
  fastnorm_status run(const AnyCall& call, void* workspace, void*, Error& error) override {
    return std::visit([&](const auto& planned) { return run_call(planned, workspace, error); },
                      call);
  }

  fastnorm_status check_peers(Error&) const override { return FASTNORM_OK; }
  bool is_dry_run() const override { return dry_run_; }
  fastnorm_status create_peer(const PeerDesc& desc, void* const* buffers,
                              std::unique_ptr<PeerLink>* link, Error&) override {
    *link = make_peer_link(desc, buffers, dry_run_);
    return FASTNORM_OK;
  }

 private:
  fastnorm_status run_call(std::span<const NormCall> calls, void*, Error& error) {
    for (const NormCall& call : calls) {
      if (!call.desc->has_stages || dry_run_) continue;
      if (call.desc->stages.modulation_index)
        FASTNORM_TRY(check_modulation_index(*call.desc, error));
      FASTNORM_TRY(check_rotation_signs("quant", call.desc->quant, call.desc->n, error));
    }
    for (const NormCall& call : calls) FASTNORM_TRY(run_one(call, error));
    return FASTNORM_OK;
  }

  fastnorm_status run_call(const MlaDecodeCall& call, void*, Error& error) {
    const MlaDecodeDesc& desc = *call.desc;
    MlaDecodeTask task = mla_decode_task(desc);
    if (dry_run_) return keep(task);
    FASTNORM_TRY(check_mla_decode_values(desc, error));
    return spread({run_mla_decode_range, &task, mla_decode_groups(desc), mla_decode_grain(desc)},
                  desc.parallel_user, "groups of heads", error);
  }

  fastnorm_status run_call(const NormHeadsCall& call, void*, Error& error) {
    NormHeadsTask task = norm_heads_task(*call.desc);
    if (dry_run_) return keep(task);
    FASTNORM_TRY(check_norm_heads_values(*call.desc, error));
    return spread({run_norm_heads_range, &task, call.desc->tokens, call.plan->grain},
                  call.desc->parallel_user, "tokens", error);
  }

  // Each part of norm_heads_backward has a plan of its own here.
  fastnorm_status run_call(const NormHeadsBackwardCall&, void*, Error& error) {
    return error.set(FASTNORM_ERROR_INTERNAL, "a plan of a GPU's");
  }

  fastnorm_status run_call(std::span<const NormBackwardCall> calls, void* workspace, Error& error) {
    // All values first, before the call writes anything.
    for (const NormBackwardCall& call : calls) {
      const NormBackwardHeads& heads = call.desc.of_heads;
      if (dry_run_ || !heads.rope || call.desc.rows == 0) continue;
      FASTNORM_TRY(check_rope_positions(heads.tables, call.desc.rows / heads.heads, error));
    }
    for (const NormBackwardCall& call : calls)
      FASTNORM_TRY(run_gradient(call.desc, call.plan, call.own(workspace), error));
    return FASTNORM_OK;
  }

  fastnorm_status run_gradient(const NormBackwardDesc& desc, const NormBackwardPlan& plan,
                               void* workspace, Error& error) {
    NormBackwardTask task = make_norm_backward_task(desc, plan, isa_, workspace);
    if (dry_run_) return keep(task);
    const NormBackwardUnits units = norm_backward_units(desc);
    const char* const word = desc.has_sums() ? "blocks of rows" : "rows";
    if (desc.of_heads.needs_own_kernels()) {
      FASTNORM_TRY(rotate_rows(desc, plan, workspace, units, word, error));
    } else if (units.count != 0) {
      FASTNORM_TRY(spread({run_norm_backward_range, &task, units.count, units.grain},
                          desc.parallel_user, word, error));
    }
    if (!desc.has_sums()) return FASTNORM_OK;
    task.range = norm_backward_fold(desc, isa_);
    return spread({run_norm_backward_range, &task, norm_backward_fold_units(desc),
                   norm_backward_fold_grain(plan)},
                  desc.parallel_user, "chunks of columns", error);
  }

  // All of a norm_heads_backward part except the fold of its sums.
  fastnorm_status rotate_rows(const NormBackwardDesc& desc, const NormBackwardPlan& plan,
                              void* workspace, const NormBackwardUnits& units, const char* word,
                              Error& error) {
    NormHeadsBackwardTask task = make_norm_heads_backward_task(desc, plan, isa_, workspace);
    if (const int64_t tokens = norm_backward_tokens(desc); tokens != 0) {
      task.range = task.tokens;
      FASTNORM_TRY(
          spread({run_norm_heads_backward_range, &task, tokens, norm_backward_token_grain(desc)},
                 desc.parallel_user, "tokens", error));
    }
    task.range = task.rows;
    if (units.count == 0) return FASTNORM_OK;
    return spread({run_norm_heads_backward_range, &task, units.count, units.grain},
                  desc.parallel_user, word, error);
  }

  fastnorm_status run_one(const NormCall& call, Error& error) {
    const int64_t rows = call.desc->rows;
    const int64_t grain = call.plan->rows_per_block;
    if (call.desc->has_stages) return run_stages(call, error);
    NormTask task = make_task(call);
    if (dry_run_) return keep(task);
    return spread({run_norm_range, &task, rows, grain}, call.desc->parallel_user, "rows", error);
  }

  fastnorm_status run_stages(const NormCall& call, Error& error) {
    StagesTask task = stages_task(call);
    if (dry_run_) return keep(task);
    return spread({run_stages_range, &task, call.desc->rows, call.plan->rows_per_block},
                  call.desc->parallel_user, "rows", error);
  }

  // Runs a job on the calling thread, the caller's loop or the pool. `user` is the call's own, or
  // nullptr. `units` is for error texts.
  fastnorm_status spread(const Job& job, void* user, const char* units, Error& error) {
    if (job.count > job.grain && parallel_for_ != nullptr) {
      return run_on_callers_loop(job, user != nullptr ? user : parallel_user_, units, error);
    }
    if (job.count > job.grain && pool_) {
      pool_->run(job);
    } else {
      job.run(job.task, 0, job.count);
    }
    return FASTNORM_OK;
  }

  NormTask make_task(const NormCall& call) const {
    const FpMode mode;
    return {norm_kernels_[call.plan->index],
            make_params(*call.desc, *call.plan, isa_, facts.l2_bytes), call.desc->rows};
  }

  StagesTask stages_task(const NormCall& call) const {
    const FpMode mode;
    return make_stages_task(*call.desc, *call.plan, isa_);
  }

  MlaDecodeTask mla_decode_task(const MlaDecodeDesc& desc) const {
    const FpMode mode;
    return make_mla_decode_task(desc, isa_);
  }

  NormHeadsTask norm_heads_task(const NormHeadsDesc& desc) const {
    const FpMode mode;
    return make_norm_heads_task(desc, isa_);
  }

  fastnorm_status run_on_callers_loop(const Job& job, void* user, const char* units,
                                      Error& error) const {
    CountedTask task{job.run, job.task, job.count};
    parallel_for_(user, job.count, job.grain, run_counted_range, &task);
    const int64_t done = task.done.load();
    FASTNORM_REQUIRE(
        done == job.count && task.ends.load() == hash(job.count) - hash(0), FASTNORM_ERROR_ARGUMENT,
        "options.parallel_for ran %" PRId64 " of %" PRId64 " %s%s; required: [0, n) exactly once",
        done, job.count, units, done == job.count ? ", some of them twice and others not" : "");
    return FASTNORM_OK;
  }

  const IsaKernels& isa_;
  const ChosenNormKernels norm_kernels_;
  const fastnorm_parallel_for_fn parallel_for_;
  void* const parallel_user_;
  const bool dry_run_;
  std::optional<Pool> pool_;
};

fastnorm_status check_device(int32_t device_id, Error& error) {
  FASTNORM_REQUIRE(device_id == 0, FASTNORM_ERROR_DEVICE,
                   "device.device_id is %d; required: 0, the CPU is one device", device_id);
  return FASTNORM_OK;
}

int32_t device_count() { return 1; }

fastnorm_status describe(int32_t device_id, fastnorm_device_info* info, Error& error) {
  FASTNORM_TRY(check_device(device_id, error));
  const IsaKernels* isa = nullptr;
  FASTNORM_TRY(choose_isa(machine_features(), &isa, error));
  std::snprintf(info->name, sizeof info->name, "%.127s", model_name());
  info->multiprocessors = processors();
  info->l2_bytes = static_cast<uint64_t>(l2_bytes());
  info->kernel_arch = isa->name;
  return FASTNORM_OK;
}

void log_choice(const fastnorm_context_options& options, const IsaKernels& isa, bool bf16,
                const DeviceFacts& facts) {
  if (options.log == nullptr) return;
  char text[192];
  std::snprintf(text, sizeof text, "CPU: kernels %s%s, %d thread%s%s, L2 %" PRId64 " KiB", isa.name,
                bf16 ? " with AVX512_BF16" : "", facts.threads, facts.threads == 1 ? "" : "s",
                options.parallel_for != nullptr ? " at a guess, of the caller's loop" : "",
                facts.l2_bytes >> 10);
  options.log(options.log_user, FASTNORM_LOG_INFO, text);
}

fastnorm_status create(int32_t device_id, const fastnorm_context_options& options,
                       std::unique_ptr<Device>* device, Error& error) {
  FASTNORM_TRY(check_device(device_id, error));
  const Features features = machine_features();
  const IsaKernels* isa = nullptr;
  FASTNORM_TRY(choose_isa(features, &isa, error));
  const bool bf16 = features.avx512_bf16 && isa->has_bf16;
  *device = std::make_unique<CpuDevice>(*isa, bf16, options);
  log_choice(options, *isa, bf16, (*device)->facts);
  return FASTNORM_OK;
}

std::span<const KernelSet> kernel_sets() {
  static const std::vector<KernelSet> sets = [] {
    std::vector<KernelSet> list;
    const auto named = [](const char* family, const auto& names) {
      return FamilyNames{family, {std::begin(names), std::end(names)}};
    };
    for (const IsaKernels& isa : built_isas()) {
      list.push_back(
          {isa.name,
           {names_of<NormEntry>("norm", kNormTable), names_of<NormEntry>("norm", kStagesTable),
            named("norm_backward", kNormBackwardCpuNames), named("mla_decode", kMlaDecodeNames),
            named("norm_heads", kNormHeadsNames),
            named("norm_heads_backward", kNormBackwardCpuNames)}});
    }
    return list;
  }();
  return sets;
}

const char* build_info() {
  static const std::string text = [] {
    std::string line = "cpu:";
    for (const IsaKernels& isa : built_isas()) line += std::string(" ") + isa.name;
    return line + "\n";
  }();
  return text.c_str();
}

}  // namespace
}  // namespace cpu

const Backend& cpu_backend() {
  static constexpr Backend kBackend = {cpu::device_count, cpu::describe, cpu::create,
                                       cpu::kernel_sets, cpu::build_info};
  return kBackend;
}

}  // namespace fastnorm
