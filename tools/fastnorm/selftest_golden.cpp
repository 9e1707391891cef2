// The same bits on every machine: hashes of the outputs, compared with a committed table.
//
// CPUs and GPUs sum in different orders, so each has its own column. The table belongs to a numeric
// version; `tests/cli/golden_test --print` prints it anew, from the arithmetic's model, and
// `fastnorm selftest --print-golden` the column of the machine at hand.
#include <cinttypes>
#include <string_view>

#include "selftest.h"

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

void test_golden(const Machine& machine, Tally* tally) {
  if (!tally->expect(fastnorm_numeric_version() == kGoldenNumericVersion,
                     "the library has numeric version " +
                         std::to_string(fastnorm_numeric_version()) + ", the table of hashes " +
                         std::to_string(kGoldenNumericVersion))) {
    return;
  }
  for (const SelftestCase& c : selftest_cases()) {
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

void print_golden(const Machine& machine) {
  Tally unused;
  for (const SelftestCase& c : selftest_cases()) {
    const uint64_t found = hash_of(run_case(machine, c, make_inputs(c), {}, &unused));
    std::printf("%016" PRIx64 " %s\n", found, c.name().c_str());
  }
}

}  // namespace fastnorm::tool
