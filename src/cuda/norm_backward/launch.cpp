// norm_backward on a CUDA device: the plan's launches, one after another.
#include "cuda/launch.h"

#include "core/check.h"
#include "cuda/arch.h"
#include "cuda/device.h"
#include "cuda/norm_backward/launch_params.h"
#include "cuda/norm_backward/table.h"

namespace fastnorm::cuda {
namespace {

constexpr int32_t kPortableSharedBytes =
    24 << 10;  // of the 48 KB of a block a kernel's own is less than 21

fastnorm_status launch(const void* kernel, const NormBackwardVariant& variant,
                       const NormBackwardStep& step, NormBackwardParams* params,
                       cudaStream_t stream, Error& error) {
  void* arguments[] = {params};
  LaunchShape shape;
  shape.grid = dim3(step.blocks_x, step.blocks_y);
  shape.threads = static_cast<unsigned>(variant.block_threads());
  shape.shared_bytes = static_cast<size_t>(step.shared_bytes);
  shape.cluster = static_cast<unsigned>(variant.blocks);
  shape.early = step.early;
  return launch_kernel(kernel, shape, arguments, stream, error);
}

}  // namespace

std::span<const NormBackwardEntry> CudaDevice::norm_backward_table() const {
  return cuda::norm_backward_table(*facts.arch);
}

fastnorm_status CudaDevice::allow_backward(const NormBackwardStep& step, Error& error) {
  if (step.shared_bytes <= kPortableSharedBytes) return FASTNORM_OK;
  const size_t index = static_cast<size_t>(step.index);
  std::atomic<bool>& allowed = allowed_backward_[index];
  if (allowed.load(std::memory_order_relaxed)) return FASTNORM_OK;
  FASTNORM_CUDA_TRY(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernels_.backward.at(step.index)),
                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                           most_backward_shared_bytes(norm_backward_table()[index].variant)));
  allowed.store(true, std::memory_order_relaxed);
  return FASTNORM_OK;
}

fastnorm_status CudaDevice::prepare_norm_backward(const NormBackwardDesc&,
                                                  const NormBackwardPlan& plan, Error& error) {
  return with_device(error, [&] {
    cudaFuncAttributes attributes;  // asking for them loads a kernel
    for (int32_t i = 0; i < plan.launches; ++i) {
      const NormBackwardStep& step = plan.steps[i];
      FASTNORM_CUDA_TRY(cudaFuncGetAttributes(
          &attributes, reinterpret_cast<const void*>(kernels_.backward.at(step.index))));
      FASTNORM_TRY(allow_backward(step, error));
    }
    return FASTNORM_OK;
  });
}

fastnorm_status CudaDevice::run_norm_backward(const NormBackwardDesc& desc,
                                              const NormBackwardPlan& plan, void* workspace,
                                              void* stream, Error& error) {
  return with_device(error, [&] {
    const std::span<const NormBackwardEntry> table = norm_backward_table();
    // All at first, so that nothing is launched where a later kernel may not be.
    for (int32_t i = 0; i < plan.launches; ++i) FASTNORM_TRY(allow_backward(plan.steps[i], error));
    for (int32_t i = 0; i < plan.launches; ++i) {
      const NormBackwardStep& step = plan.steps[i];
      NormBackwardParams params = make_step_params(desc, plan, step, workspace);
      FASTNORM_TRY(launch(reinterpret_cast<const void*>(kernels_.backward.at(step.index)),
                          table[static_cast<size_t>(step.index)].variant, step, &params,
                          static_cast<cudaStream_t>(stream), error));
    }
    return FASTNORM_OK;
  });
}

}  // namespace fastnorm::cuda
