// The norm family on a CUDA device: one launch for each call.
#include "core/check.h"
#include "cuda/device.h"
#include "cuda/launch_params.h"

namespace fastnorm::cuda {
namespace {

fastnorm_status launch(NormKernel kernel, const NormCall& call, cudaStream_t stream, Error& error) {
  NormParams params = make_params(*call.desc, *call.plan);
  void* arguments[] = {&params};
  const Tile tile = call.plan->entry->tile;
  cudaLaunchAttribute attribute = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(call.plan->blocks));
  config.blockDim = dim3(static_cast<unsigned>(tile.threads * call.plan->rows_per_block));
  config.stream = stream;
  if (tile.blocks > 1) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(tile.blocks), 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  FASTNORM_CUDA_TRY(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments));
  return FASTNORM_OK;
}

}  // namespace

template <typename Body>
fastnorm_status CudaDevice::with_device(Error& error, Body body) {
  void* before = nullptr;
  driver_.get_current(&before);
  if (__builtin_expect(before == primary_, 1)) return body();
  if (before != nullptr) {
    int id = -1;
    // A context beside the primary one has streams of its own: work queued here would not be ordered with them.
    FASTNORM_REQUIRE(driver_.get_device(&id) != 0 || id != facts.device_id, FASTNORM_ERROR_DEVICE,
                     "the thread's current CUDA context is not the primary context of device %d; "
                     "required: the primary one, or "
                     "none",
                     facts.device_id);
  }
  FASTNORM_REQUIRE(driver_.set_current(primary_) == 0, FASTNORM_ERROR_DEVICE,
                   "the primary CUDA context of device %d cannot be made current; required: that "
                   "it was not reset",
                   facts.device_id);
  const fastnorm_status status = body();
  driver_.set_current(before);
  return status;
}

fastnorm_status CudaDevice::prepare_norm(std::span<const NormCall> calls, Error& error) {
  return with_device(error, [&] {
    for (const NormCall& call : calls) {
      cudaFuncAttributes attributes;  // asking for them loads the kernel
      FASTNORM_CUDA_TRY(cudaFuncGetAttributes(
          &attributes, reinterpret_cast<const void*>(kernels_.at(call.plan->index))));
    }
    return FASTNORM_OK;
  });
}

fastnorm_status CudaDevice::run_norm(std::span<const NormCall> calls, void*, void* stream,
                                     Error& error) {
  return with_device(error, [&] {
    for (const NormCall& call : calls) {
      FASTNORM_TRY(
          launch(kernels_.at(call.plan->index), call, static_cast<cudaStream_t>(stream), error));
    }
    return FASTNORM_OK;
  });
}

}  // namespace fastnorm::cuda
