// The families that are timed in place of norms, each by an option of its own. FAMILY.cpp has
// FAMILY_bench(); FAMILY_cpu.cpp and FAMILY_cuda.cpp have what times its calls.
#pragma once

#include <string>
#include <vector>

#include "bench/devices.h"
#include "support/families.h"

namespace bench {

struct FamilyBench {
  const char* option;
  const char* help;
};

// What the command line asks for.
struct FamilyCases {
  std::vector<std::string> shapes, dtypes;  // a family has words of its own for shapes
};

// These print a row for each case and return how many failed.
#define FAMILY(name)                                                        \
  FamilyBench name##_bench();                                               \
  int bench_##name##_cpu(const FamilyCases& asked, const Options& options); \
  int bench_##name##_cuda(int id, const FamilyCases& asked, const Options& options);
FASTNORM_COMMAND_FAMILIES(FAMILY)
#undef FAMILY

}  // namespace bench
