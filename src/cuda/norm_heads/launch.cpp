// norm_heads on a CUDA device: one launch.
#include "core/check.h"
#include "cuda/device.h"
#include "cuda/norm_heads/launch_params.h"
#include "cuda/norm_heads/table.h"

namespace fastnorm::cuda {

std::span<const NormHeadsEntry> CudaDevice::norm_heads_table() const {
  return cuda::norm_heads_table(*facts.arch);
}

fastnorm_status CudaDevice::prepare_norm_heads(const NormHeadsDesc&, const NormHeadsPlan& plan,
                                               Error& error) {
  return with_device(error, [&] {
    cudaFuncAttributes attributes;  // asking for them loads a kernel
    FASTNORM_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernels_.heads.at(plan.index).address()));
    return FASTNORM_OK;
  });
}

fastnorm_status CudaDevice::run_norm_heads(const NormHeadsDesc& desc, const NormHeadsPlan& plan,
                                           void* stream, Error& error) {
  const auto launch = [&](void* params) -> fastnorm_status {
    void* arguments[] = {params};
    const void* const kernel = kernels_.heads.at(plan.index).address();
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
    config.blockDim = dim3(static_cast<unsigned>(plan.entry->variant.block_threads()));
    config.stream = static_cast<cudaStream_t>(stream);
    FASTNORM_CUDA_TRY(cudaLaunchKernelExC(&config, kernel, arguments));
    return FASTNORM_OK;
  };
  return with_device(error, [&] {
    return visit_heads_params(desc, plan, [&](auto params) { return launch(&params); });
  });
}

}  // namespace fastnorm::cuda
