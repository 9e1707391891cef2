// norm_heads_backward on a CUDA device: the plan's launches, one after another.
#include "cuda/launch.h"

#include <algorithm>

#include "core/check.h"
#include "cuda/device.h"
#include "cuda/norm_heads_backward/launch_params.h"
#include "cuda/norm_heads_backward/table.h"

namespace fastnorm::cuda {
namespace {

constexpr int32_t kPortableSharedBytes = 8 << 10;  // of the 48 KB of a block a kernel's own is less

fastnorm_status launch(const void* kernel, const NormHeadsBackwardVariant& variant,
                       const HeadsBackwardStep& step, void* params, void* stream, Error& error) {
  void* arguments[] = {params};
  LaunchShape shape;
  shape.grid = dim3(step.blocks);
  shape.threads = static_cast<unsigned>(variant.block_threads());
  shape.shared_bytes = static_cast<size_t>(step.shared_bytes);
  shape.early = step.early;
  return launch_kernel(kernel, shape, arguments, static_cast<cudaStream_t>(stream), error);
}

}  // namespace

std::span<const NormHeadsBackwardEntry> CudaDevice::norm_heads_backward_table() const {
  return cuda::norm_heads_backward_table(*facts.arch);
}

fastnorm_status CudaDevice::allow_heads_backward(const HeadsBackwardStep& step, Error& error) {
  if (step.shared_bytes <= kPortableSharedBytes) return FASTNORM_OK;
  std::atomic<bool>& allowed = allowed_heads_backward_[static_cast<size_t>(step.index)];
  if (allowed.load(std::memory_order_relaxed)) return FASTNORM_OK;
  FASTNORM_CUDA_TRY(cudaFuncSetAttribute(kernels_.heads_backward.at(step.index).address(),
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         std::max(step.shared_bytes, kMostHeadsGradientBytes)));
  allowed.store(true, std::memory_order_relaxed);
  return FASTNORM_OK;
}

fastnorm_status CudaDevice::prepare_norm_heads_backward(const HeadsGradients&,
                                                        const NormHeadsBackwardPlan& plan,
                                                        Error& error) {
  return with_device(error, [&] {
    cudaFuncAttributes attributes;  // asking for them loads a kernel
    for (int32_t i = 0; i < plan.launches; ++i) {
      FASTNORM_CUDA_TRY(cudaFuncGetAttributes(
          &attributes, kernels_.heads_backward.at(plan.steps[i].index).address()));
      FASTNORM_TRY(allow_heads_backward(plan.steps[i], error));
    }
    return FASTNORM_OK;
  });
}

fastnorm_status CudaDevice::run_norm_heads_backward(const HeadsGradients& call,
                                                    const NormHeadsBackwardPlan& plan,
                                                    void* workspace, void* stream, Error& error) {
  return with_device(error, [&] {
    const std::span<const NormHeadsBackwardEntry> table = norm_heads_backward_table();
    // All at first, so that nothing is launched where a later kernel may not be.
    for (int32_t i = 0; i < plan.launches; ++i)
      FASTNORM_TRY(allow_heads_backward(plan.steps[i], error));
    for (int32_t i = 0; i < plan.launches; ++i) {
      const HeadsBackwardStep& step = plan.steps[i];
      const NormHeadsBackwardVariant& variant = table[static_cast<size_t>(step.index)].variant;
      FASTNORM_TRY(
          visit_heads_backward_params(call, plan, step, variant, workspace, [&](auto params) {
            return launch(kernels_.heads_backward.at(step.index).address(), variant, step, &params,
                          stream, error);
          }));
    }
    return FASTNORM_OK;
  });
}

}  // namespace fastnorm::cuda
