// A CUDA runtime and driver that only record calls, with GPUs that a test defines. The library's
// host code runs with them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fastnorm::test {

inline constexpr int kMostGpus = 2;

// The GPUs and their driver, for all threads. Set before the threads start.
struct Machine {
  int gpus = 1;
  int capability = 90;
  int multiprocessors = 132;
  unsigned largest_cluster = 16;  // that can be scheduled
  int driver = 13000;             // 0: none
  std::string missing_function;   // of the driver
  // The error of a function of the runtime, by its name.
  std::map<std::string, cudaError_t, std::less<>> failures;
  bool reaches = true;  // one GPU another one's memory
};
extern Machine machine;

// What was taken and not given back, and what one GPU may reach of another.
struct Holdings {
  int device_memory = 0, host_memory = 0, streams = 0, opened = 0;  // opened: by CUDA IPC
  int opened_since_wait = 0;                                        // for the device
  std::vector<std::pair<int, int>> access;                          // from, to
};
extern Holdings holdings;

// One launch.
struct Launch {
  const void* kernel;
  dim3 grid, block;
  unsigned cluster;  // 0: the attribute is not there
  int early;         // of programmatic stream serialization; -1: the attribute is not there
  cudaStream_t stream;
  void* context;  // current at the time
  size_t shared_bytes;
  const void* params;  // what the kernel got beside tensor maps; valid in on_launch()
};

// What a tensor map was encoded from. The first dimension has 64 columns, one after another.
struct TensorMap {
  const void* address;
  uint64_t extent[4], stride[3];  // bytes
  uint32_t box[4];
};

// What a thread did, and its current context: the runtime keeps state per thread, too.
struct ThreadNotes {
  void* context = nullptr;
  cudaError_t last_error = cudaSuccess;  // until it is asked for
  int64_t launches = 0;
  int64_t tensor_maps = 0;                  // encoded
  std::vector<TensorMap> maps;              // those, in order
  std::vector<const void*> loaded;          // by cudaFuncGetAttributes()
  std::map<const void*, int> shared_bytes;  // permitted, where it is more than 48 KB
  void (*on_launch)(const Launch& launch) = nullptr;
};
extern thread_local ThreadNotes notes;

// The primary context of a GPU, and another one on it.
void* primary_context(int gpu);
void* other_context(int gpu);

// The kernels of MLA decode.
struct MlaKernels {
  const void *attention[2][2], *plan, *merge[2];  // by f16, and profile
  const void* gather[2][4];                       // by f16, and the format of the cache
  const void* swapped[2];                         // by f16
};
MlaKernels mla_kernels();

}  // namespace fastnorm::test
