// Norm calls with stages on a CUDA device: one launch for each.
#include "core/check.h"
#include "cuda/device.h"
#include "cuda/norm_stages/launch_params.h"

namespace fastnorm::cuda {

fastnorm_status CudaDevice::prepare_stages(const NormCall& call, Error& error) {
  cudaFuncAttributes attributes;  // asking for them loads a kernel
  FASTNORM_CUDA_TRY(
      cudaFuncGetAttributes(&attributes, kernels_.stages.at(call.plan->index).address()));
  return FASTNORM_OK;
}

fastnorm_status CudaDevice::run_stages(const NormCall& call, cudaStream_t stream, Error& error) {
  const Tile tile = call.plan->entry->tile;
  cudaLaunchAttribute early = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(call.plan->blocks));
  config.blockDim = dim3(static_cast<unsigned>(tile.threads * call.plan->rows_per_block));
  config.stream = stream;
  if ((call.desc->flags & FASTNORM_NORM_PDL_WAIT) != 0 && launches_early(*facts.arch)) {
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &early;
    config.numAttrs = 1;
  }
  const auto launch = [&](void* params) -> fastnorm_status {
    void* arguments[] = {params};
    FASTNORM_CUDA_TRY(
        cudaLaunchKernelExC(&config, kernels_.stages.at(call.plan->index).address(), arguments));
    return FASTNORM_OK;
  };
  return visit_stages_params(*call.desc, *call.plan, *facts.arch,
                             [&](auto params) { return launch(&params); });
}

}  // namespace fastnorm::cuda
