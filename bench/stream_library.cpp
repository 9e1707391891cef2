// The streaming kernels for Python's ctypes. A kind is a list of kernels that move the same bytes.
#include <exception>
#include <string>
#include <vector>

#include "bench/stream.cuh"

#define STREAMS_API __attribute__((visibility("default")))

namespace {

thread_local std::string error;

const std::vector<bench::Stream>& list_of(int32_t reads, int32_t narrow) {
  static const std::vector<bench::Stream> lists[] = {bench::streams(1), bench::streams(2),
                                                     bench::streams(1, 2), bench::streams(2, 2)};
  return lists[(narrow != 0 ? 2 : 0) + (reads == 2 ? 1 : 0)];
}

}  // namespace

extern "C" {

// Number of kernels that read `reads` tensors (1 or 2) and write as many, the first of them half as wide if `narrow`.
STREAMS_API int32_t streams_count(int32_t reads, int32_t narrow) {
  return static_cast<int32_t>(list_of(reads, narrow).size());
}

// Name of kernel `index`, such as "R2W2 256x4 cs".
STREAMS_API const char* streams_name(int32_t reads, int32_t narrow, int32_t index) {
  return list_of(reads, narrow).at(static_cast<size_t>(index)).name.c_str();
}

// Queues kernel `index`: a (and b) of `bytes` are read, c (and d) written; b and d are ignored where one is read. Returns 0, or 1
// with the reason in streams_error().
STREAMS_API int32_t streams_launch(int32_t reads, int32_t narrow, int32_t index, const void* a,
                                   const void* b, void* c, void* d, int64_t bytes, void* stream) {
  try {
    bench::launch(list_of(reads, narrow).at(static_cast<size_t>(index)),
                  {static_cast<const char*>(a), static_cast<const char*>(b), static_cast<char*>(c),
                   static_cast<char*>(d), bytes},
                  static_cast<cudaStream_t>(stream));
    return 0;
  } catch (const std::exception& e) {
    error = e.what();
    return 1;
  }
}

// Text of the calling thread's last failure.
STREAMS_API const char* streams_error() { return error.c_str(); }
}
