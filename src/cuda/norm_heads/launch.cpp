// norm_heads on a CUDA device: one launch.
#include "cuda/launch.h"

#include "core/check.h"
#include "core/pdl.h"
#include "cuda/arch.h"
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
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(plan.blocks));
    shape.threads = static_cast<unsigned>(plan.entry->variant.block_threads());
    shape.early = (desc.pdl & kPdlWait) != 0 && launches_early(*facts.arch);
    return launch_kernel(kernel, shape, arguments, static_cast<cudaStream_t>(stream), error);
  };
  return with_device(error, [&] {
    return visit_heads_params(desc, plan, [&](auto params) { return launch(&params); });
  });
}

}  // namespace fastnorm::cuda
