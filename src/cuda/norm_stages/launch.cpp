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
  const bool is_held = facts.arch->stages->entries[call.plan->index].variant.is_held();
  NormStagesParams general;
  HeldStagesParams held;
  if (is_held) {
    held = make_held_stages_params(*call.desc, *call.plan);
  } else {
    general = make_norm_stages_params(*call.desc, *call.plan);
  }
  void* arguments[] = {is_held ? static_cast<void*>(&held) : &general};
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
  FASTNORM_CUDA_TRY(
      cudaLaunchKernelExC(&config, kernels_.stages.at(call.plan->index).address(), arguments));
  return FASTNORM_OK;
}

}  // namespace fastnorm::cuda
