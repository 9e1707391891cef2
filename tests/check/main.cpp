// fastnorm_check: every kernel of every table against the specification, bit for bit.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "check/family.h"
#include "check/mla_decode.h"
#include "check/run_call.h"
#include "check/sweep.h"
#include "cuda/arch.h"

namespace {

using namespace fastnorm;
using namespace fastnorm::check;

constexpr int kSkipped = 77;

void skip(const std::string& what, const std::string& why, Counts* counts) {
  ++counts->skipped;
  std::printf("SKIP %s: %s\n", what.c_str(), why.c_str());
}

// Counts a skip if the family has no kernels.
bool has_mla_decode(const Target& target, const Options& options, Counts* counts) {
  const DeviceFacts& facts = target.devices[0]->facts;
  if (!target.cuda || (facts.arch == &cuda::kSm90 && target.has_kernel == nullptr)) return true;
  if (options.wants("mla_decode")) skip(target.name + " mla_decode", "sm_90 alone has it", counts);
  return false;
}

// The targets that have kernels of a family. Counts a skip for each other one.
std::vector<Target*> targets_of(const FamilyChecks& family, std::span<Target> targets,
                                const Options& options, Counts* counts) {
  std::vector<Target*> found;
  for (Target& target : targets) {
    if (family.runs_on(target)) {
      found.push_back(&target);
    } else if (options.wants(family.family)) {
      skip(target.name + " " + family.family, "no kernels", counts);
    }
  }
  return found;
}

void run(std::span<Target> targets, const Options& options, SameBits* same_bits, Counts* counts) {
  const char* what = targets[0].name.c_str();
  try {
    for (Target& target : targets) {
      if (options.wrong_order) target.order = wrong_order(target.order);
      if (!options.call.empty()) replay(target, options, counts);
    }
    if (!options.call.empty()) return;
    if (options.wants_norm()) sweep(targets, options, same_bits, counts);
    for (Target& target : targets) {
      what = target.name.c_str();
      // It plans rows of its own, which have this dtype.
      if (options.wants("bf16 plain rms") && target.has_all())
        check_sensitivity(target, options, counts);
      if (target.host_memory) check_page_edges(target, options, counts);
      if (has_mla_decode(target, options, counts)) check_mla_decode(target, options, counts);
    }
    what = targets[0].name.c_str();
    for (const FamilyChecks& family : all_checks()) {
      const std::vector<Target*> with_kernels = targets_of(family, targets, options, counts);
      if (!with_kernels.empty()) family.check(with_kernels, options, counts);
    }
  } catch (const support::CallTextError& e) {
    std::fprintf(stderr, "fastnorm_check: %s\n", e.what());
    std::exit(2);
  } catch (const std::exception& e) {  // a device's fault ends its sweep
    ++counts->failed;
    std::printf("FAIL %s: %s\n", what, e.what());
  }
}

// Passes if enough equal rows occurred to make their comparison meaningful.
void report_same_bits(const char* backend, const SameBits& same_bits, Counts* counts) {
  if (same_bits.rows() == 0) return;
  std::printf("same bits: %lld results of %s rows came up again %lld times\n",
              static_cast<long long>(same_bits.rows()), backend,
              static_cast<long long>(same_bits.repeats()));
  same_bits.repeats() >= same_bits.rows() ? ++counts->passed : ++counts->failed;
}

void check_cpu(const Options& options, Counts* counts) {
  SameBits same_bits;
  std::vector<Target> targets;
  for (const KernelSet& set : cpu_backend().kernel_sets()) {
    if (!options.isa.empty() && options.isa != set.arch) continue;
    std::string why;
    Target target = make_cpu_target(set.arch, &why);
    if (target.devices.empty()) {
      skip(target.name, why, counts);
      continue;
    }
    targets.push_back(std::move(target));
  }
  unsetenv("FASTNORM_CPU_ISA");
  if (!targets.empty()) run(targets, options, &same_bits, counts);
  report_same_bits("cpu", same_bits, counts);
  if (targets.empty()) {
    ++counts->failed;
    std::printf("FAIL cpu: no instruction set%s%s can be tested here\n",
                options.isa.empty() ? "" : " ", options.isa.c_str());
  }
}

void check_cuda(const Options& options, Counts* counts) {
  const int ordinal = options.cuda_device < 0 ? 0 : options.cuda_device;
  const int devices = cuda_backend().device_count();
  const bool asked = options.cuda_device >= 0;
  SameBits same_bits;
  std::string why = devices == 0 ? "no GPU" : "no such GPU";
  std::string tested;
  if (ordinal < devices) {
    Target target = make_cuda_target(ordinal, options.late, options.races, &why);
    if (target.devices.empty()) {
      ++counts->failed;
      std::printf("FAIL %s: %s\n", target.name.c_str(), why.c_str());
    } else {
      tested = target.devices[0]->facts.arch->name;
      run({&target, 1}, options, &same_bits, counts);
      report_same_bits("cuda", same_bits, counts);
    }
    why = "no GPU of this architecture";
  } else if (asked) {
    ++counts->failed;
    std::printf("FAIL cuda:%d: %s\n", ordinal, why.c_str());
  }
  for (const KernelSet& set : cuda_backend().kernel_sets()) {
    if (set.arch != tested) skip(std::string("cuda ") + set.arch, why, counts);
  }
}

void check_simt(const Options& options, Counts* counts) {
  SameBits same_bits;
  std::string why;
  Target target = make_simt_target(&why);
  if (target.devices.empty()) return skip(target.name, why, counts);
  run({&target, 1}, options, &same_bits, counts);
  report_same_bits("simt", same_bits, counts);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  Counts counts;
  if (options.cpu) check_cpu(options, &counts);
  if (options.cuda && options.isa.empty()) check_cuda(options, &counts);
  if (options.simt && options.isa.empty()) check_simt(options, &counts);
  std::printf("%lld passed, %lld failed, %lld skipped\n", static_cast<long long>(counts.passed),
              static_cast<long long>(counts.failed), static_cast<long long>(counts.skipped));
  if (counts.failed > 0) return 1;
  return counts.passed == 0 ? kSkipped : 0;
}
