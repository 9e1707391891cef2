// Stands in for cuda.cpp in a build without CUDA.
#include <stdexcept>

#include "bench/devices.h"
#include "bench/families.h"

namespace bench {

namespace {

int refuse() { throw std::runtime_error("this build has no CUDA; configure with -Dcuda=enabled"); }

}  // namespace

int bench_cuda(int, const std::vector<Case>&, const Options&) { return refuse(); }

int bench_chain_cuda(int, const std::vector<Case>&, const Options&) { return refuse(); }

#define FAMILY(name) \
  int bench_##name##_cuda(int, const FamilyCases&, const Options&) { return refuse(); }
FASTNORM_COMMAND_FAMILIES(FAMILY)
#undef FAMILY

}  // namespace bench
