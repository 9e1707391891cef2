// Stands in for cuda.cpp in a build without CUDA.
#include <stdexcept>

#include "bench/devices.h"
#include "bench/mla_decode.h"

namespace bench {

int bench_cuda(int, const std::vector<Case>&, const Options&) {
  throw std::runtime_error("this build has no CUDA; configure with -Dcuda=enabled");
}

int bench_mla_decode_cuda(int, const std::vector<MlaDecodeCase>&, const Options&) {
  throw std::runtime_error("this build has no CUDA; configure with -Dcuda=enabled");
}

}  // namespace bench
