// A CUDA runtime and driver that only record calls, with GPUs that a test defines. The library's
// host code runs with them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cuda/mla_decode/params.h"
#include "cuda/norm/params.h"
#include "cuda/norm_backward/params.h"
#include "cuda/norm_heads/params.h"
#include "cuda/norm_heads_backward/params.h"
#include "cuda/norm_stages/params.h"
#include "cuda/peer/params.h"

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

// The parameters of one launch.
struct Launch {
  const void* kernel;
  dim3 grid, block;
  unsigned cluster;  // 0: the attribute is not there
  int early;         // of programmatic stream serialization; -1: the attribute is not there
  cudaStream_t stream;
  void* context;                   // current at the time
  const cuda::NormParams* params;  // of a kernel for one call, else null; valid in on_launch()
  const cuda::NormPairParams* pair_params;  // of one for two
  size_t shared_bytes;
  const cuda::MlaDecodeParams* mla_params;          // of a kernel of MLA decode
  const cuda::NormBackwardParams* backward_params;  // of a kernel of the backward pass
  const cuda::NormHeadsParams* heads_params;        // of norm_heads' general form
  const cuda::HeldHeadsParams* held_heads_params;   // of its others
  // Of norm_heads_backward, by the form:
  const cuda::NormHeadsBackwardParams* heads_backward_params;
  const cuda::HeldHeadsBackwardParams* held_heads_backward_params;
  const cuda::HeadsFoldParams* heads_fold_params;
  const cuda::NormStagesParams* stages_params;       // of norm calls with stages: the general form
  const cuda::HeldStagesParams* held_stages_params;  // the other forms
  const cuda::PeerNormParams* peer_norm_params;      // of a fused kernel of peers
  const cuda::PeerSumParams* peer_sum_params;        // of one that exchanges rows
  const cuda::PeerStatisticsParams* peer_statistics_params;
  const cuda::PeerShardedParams* peer_sharded_params;
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
};
MlaKernels mla_kernels();

// The address of an entry's kernel in sm_90's table.
const void* kernel_address(int32_t index);
const void* pair_kernel_address(int32_t index, cuda::GridForm form);

}  // namespace fastnorm::test
