// Norm calls with stages on a CUDA device: one launch for each.
#include "cuda/launch.h"

#include "core/check.h"
#include "core/pdl.h"
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
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(call.plan->blocks));
  shape.threads = static_cast<unsigned>(tile.threads * call.plan->rows_per_block);
  shape.early = (call.desc->flags & kPdlWait) != 0 && launches_early(*facts.arch);
  const auto launch = [&](void* params) -> fastnorm_status {
    void* arguments[] = {params};
    return launch_kernel(kernels_.stages.at(call.plan->index).address(), shape, arguments, stream,
                         error);
  };
  return visit_stages_params(*call.desc, *call.plan, *facts.arch,
                             [&](auto params) { return launch(&params); });
}

}  // namespace fastnorm::cuda
