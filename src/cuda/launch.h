// The launch of a kernel, of any family: the attributes that a plan asks for.
#pragma once

#include "cuda/device.h"

namespace fastnorm::cuda {

struct LaunchShape {
  dim3 grid;
  unsigned threads = 0;     // of a block
  size_t shared_bytes = 0;  // in addition to the kernel's own
  unsigned cluster = 1;     // thread blocks of a cluster
  // The kernel may start before the stream's previous one has ended. It waits for that itself.
  bool early = false;
};

// On the current device. `arguments`: the addresses of the kernel's parameters.
inline fastnorm_status launch_kernel(const void* kernel, const LaunchShape& shape, void** arguments,
                                     cudaStream_t stream, Error& error) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {shape.cluster, 1, 1};
  }
  if (shape.early) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  FASTNORM_CUDA_TRY(cudaLaunchKernelExC(&config, kernel, arguments));
  return FASTNORM_OK;
}

}  // namespace fastnorm::cuda
