// The streaming kernels for Python's ctypes. A kind is a list of kernels that move the same bytes.
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/stream.cuh"

#define STREAMS_API __attribute__((visibility("default")))

namespace {

thread_local std::string error;

enum Written { kAlike, kNarrow, kJoined };

// The kernels that read `reads` tensors and write as many (kAlike), the first of them half as wide
// (kNarrow), or one (kJoined).
const std::vector<bench::Stream>& list_of(int32_t reads, int32_t written) {
  static const std::vector<bench::Stream> lists[][2] = {
      {bench::streams(1), bench::streams(2)},
      {bench::streams(1, 2), bench::streams(2, 2)},
      {bench::join_streams(2), bench::join_streams(3)},
  };
  const int32_t fewest = written == kJoined ? 2 : 1;
  if (written < kAlike || written > kJoined || reads < fewest || reads > fewest + 1)
    throw std::invalid_argument("no stream reads " + std::to_string(reads) + " tensors so");
  return lists[written][reads - fewest];
}

}  // namespace

extern "C" {

// Number of kernels of a kind, or 0.
STREAMS_API int32_t streams_count(int32_t reads, int32_t written) {
  try {
    return static_cast<int32_t>(list_of(reads, written).size());
  } catch (const std::exception& e) {
    error = e.what();
    return 0;
  }
}

// Name of kernel `index`, such as "R2W2 256x4 cs".
STREAMS_API const char* streams_name(int32_t reads, int32_t written, int32_t index) {
  return list_of(reads, written).at(static_cast<size_t>(index)).name.c_str();
}

// Queues kernel `index`: a (and b) of `bytes` are read, c (and d) written. Of kJoined a, b (and d)
// are read. Others are ignored. Returns 0, or 1 with the reason in streams_error().
STREAMS_API int32_t streams_launch(int32_t reads, int32_t written, int32_t index, const void* a,
                                   const void* b, void* c, void* d, int64_t bytes, void* stream) {
  try {
    bench::Traffic traffic = {static_cast<const char*>(a), static_cast<const char*>(b),
                              static_cast<char*>(c), static_cast<char*>(d), bytes};
    traffic.e = static_cast<const char*>(d);
    bench::launch(list_of(reads, written).at(static_cast<size_t>(index)), traffic,
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
