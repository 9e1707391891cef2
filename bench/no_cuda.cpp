// Stands in for cuda.cpp in a build without CUDA.
#include <stdexcept>

#include "bench/devices.h"
#include "bench/mla_decode.h"
#include "bench/norm_heads_backward.h"

namespace bench {

namespace {

int refuse() { throw std::runtime_error("this build has no CUDA; configure with -Dcuda=enabled"); }

}  // namespace

int bench_cuda(int, const std::vector<Case>&, const Options&) { return refuse(); }

int bench_chain_cuda(int, const std::vector<Case>&, const Options&) { return refuse(); }

int bench_mla_decode_cuda(int, const std::vector<MlaDecodeCase>&, const Options&) {
  return refuse();
}

int bench_norm_heads_cuda(int, const std::vector<NormHeadsCase>&, const Options&) {
  return refuse();
}

int bench_norm_heads_backward_cuda(int, const std::vector<NormHeadsBackwardCase>&, const Options&) {
  return refuse();
}

}  // namespace bench
