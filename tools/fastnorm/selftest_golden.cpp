// Every machine gives the same bits: hashes of the outputs, compared with a committed table.
//
// CPUs and GPUs sum in different orders, so each has its own column. The table belongs to a numeric
// version; `tests/cli/golden_test --print` prints it anew, from the arithmetic's model, and
// `fastnorm selftest --print-golden` the column of the machine at hand.
#include <cinttypes>
#include <string_view>

#include "progress.h"
#include "selftest_backward.h"

namespace fastnorm::tool {
namespace {

struct Golden {
  std::string_view name;
  uint64_t cpu, cuda;
};

constexpr int32_t kGoldenNumericVersion = 2;
constexpr Golden kGolden[] = {
#include "selftest_golden.inc"
};

bool has_numeric_version(Tally* tally) {
  return tally->expect(fastnorm_numeric_version() == kGoldenNumericVersion,
                       "the library has numeric version " +
                           std::to_string(fastnorm_numeric_version()) + ", the table of hashes " +
                           std::to_string(kGoldenNumericVersion));
}

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

}  // namespace

uint64_t hash_of(const CaseOutputs& outputs) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::vector<std::byte>& part : outputs) {
    for (const std::byte b : part) hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3u;
  }
  return hash;
}

const uint64_t* find_golden(const std::string& case_name, bool cuda) {
  for (const Golden& golden : kGolden) {
    if (golden.name == case_name) return cuda ? &golden.cuda : &golden.cpu;
  }
  return nullptr;
}

void test_golden(const Machine& machine, const Effort& effort, Tally* tally) {
  if (!has_numeric_version(tally)) return;
  const std::vector<SelftestCase> cases = effort.some_of(selftest_cases());
  for (size_t i = 0; i < cases.size(); ++i) {
    const SelftestCase& c = cases[i];
    show_progress(i, cases.size(), c.name());
    const uint64_t* wanted = find_golden(c.name(), machine.target().is_cuda());
    if (!tally->expect(wanted != nullptr, c.name() + ": not in the table of hashes")) continue;
    const CaseInputs inputs = make_inputs(c);
    for (const CaseLayout& form : call_forms(c)) {
      const uint64_t found = hash_of(run_case(machine, c, inputs, form, tally));
      tally->expect(found == *wanted, c.name() + ", " + form.name + ": the outputs hash to " +
                                          hex(found) + ", required " + hex(*wanted));
    }
  }
}

void test_backward_golden(const Machine& machine, const Effort& effort, Tally* tally) {
  if (!has_numeric_version(tally)) return;
  const bool cuda = machine.target().is_cuda();
  const std::unique_ptr<Machine> pooled =
      cuda ? nullptr : std::make_unique<Machine>(machine.target(), 3);
  const std::vector<BackwardCase> cases = effort.some_of(backward_cases());
  for (size_t i = 0; i < cases.size(); ++i) {
    const BackwardCase& c = cases[i];
    show_progress(i, cases.size(), c.name());
    const uint64_t* dx = find_golden(dx_name(c), cuda);
    const uint64_t* sums = find_golden(sums_name(c), cuda);
    if (!tally->expect(dx != nullptr && sums != nullptr, c.name() + ": not in the table of hashes"))
      continue;
    const BackwardInputs inputs = make_inputs(c);
    const auto compare = [&](const Machine& on, const CaseLayout& layout, const char* more) {
      const BackwardOutputs outputs = run_case(on, c, inputs, layout, tally);
      const auto same = [&](uint64_t found, uint64_t wanted, const char* what) {
        tally->expect(found == wanted, c.name() + ", " + layout.name + more + ": " + what +
                                           " hash to " + hex(found) + ", required " + hex(wanted));
      };
      same(hash_of_dx(outputs), *dx, "the bits of dx");
      same(hash_of_sums(outputs), *sums, "those of dweight and dbias");
    };
    for (const CaseLayout& layout : backward_layouts()) compare(machine, layout, "");
    if (pooled != nullptr) compare(*pooled, {}, ", 3 threads");
  }
}

std::vector<GoldenHash> golden_hashes(const Machine& machine) {
  Tally unused;
  std::vector<GoldenHash> hashes;
  for (const SelftestCase& c : selftest_cases()) {
    const uint64_t found = hash_of(run_case(machine, c, make_inputs(c), {}, &unused));
    hashes.push_back({c.name(), hex(found)});
  }
  for (const BackwardCase& c : backward_cases()) {
    const BackwardOutputs outputs = run_case(machine, c, make_inputs(c), {}, &unused);
    hashes.push_back({dx_name(c), hex(hash_of_dx(outputs))});
    hashes.push_back({sums_name(c), hex(hash_of_sums(outputs))});
  }
  return hashes;
}

}  // namespace fastnorm::tool
