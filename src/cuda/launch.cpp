// From planned calls to launches on a CUDA device: the functions of CudaDevice (device.h).
#include "cuda/launch.h"

#include "cuda/device.h"
#include "cuda/launches.h"

namespace fastnorm::cuda {

fastnorm_status launch_kernel(const void* kernel, const LaunchShape& shape, void** arguments,
                              cudaStream_t stream, Error& error) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.blocks_x, shape.blocks_y);
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

CudaDevice::CudaDevice(const DeviceFacts& device_facts, const ArchKernels& kernels,
                       const Driver& driver, void* primary)
    : GpuDevice(device_facts), driver_(driver), primary_(primary) {
  constexpr uint32_t kPortableBytes = 48 << 10;  // of a block, own and asked for
  Families::for_each([&]<class Family>() {
    constexpr size_t kFamily = Families::index_of<Family>();
    const std::vector<const void*>& addresses = kernels.of[kFamily];
    kernels_[kFamily] = std::make_unique<DeviceKernel[]>(addresses.size());
    for (size_t i = 0; i < addresses.size(); ++i) {
      kernels_[kFamily][i].address = addresses[i];
      kernels_[kFamily][i].allowed_bytes = kPortableBytes - Family::kOwnSharedBytes;
    }
  });
}

fastnorm_status CudaDevice::allow_more(DeviceKernel& kernel, uint32_t shared_bytes, Error& error) {
  const std::lock_guard lock(allowing_);
  if (shared_bytes <= kernel.allowed_bytes.load(std::memory_order_relaxed)) return FASTNORM_OK;
  FASTNORM_CUDA_TRY(cudaFuncSetAttribute(
      kernel.address, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  kernel.allowed_bytes.store(shared_bytes, std::memory_order_relaxed);
  return FASTNORM_OK;
}

fastnorm_status CudaDevice::prepare(const AnyCall& call, Error& error) {
  return with_device(error, [&] {
    if (const auto* const decode = std::get_if<MlaDecodeCall>(&call))
      return prepare_mla_decode(*decode, error);
    return for_each_launch(call, *facts.arch, nullptr,
                           [&](const auto& launch, const auto&) { return load(launch, error); });
  });
}

fastnorm_status CudaDevice::run(const AnyCall& call, void* workspace, void* stream, Error& error) {
  return with_device(error, [&] {
    if (const auto* const decode = std::get_if<MlaDecodeCall>(&call))
      return run_mla_decode(*decode, workspace, stream, error);
    // All at first, so that nothing is launched where a later kernel may not be.
    FASTNORM_TRY(
        for_each_launch(call, *facts.arch, workspace,
                        [&](const auto& launch, const auto&) { return allow(launch, error); }));
    return for_each_launch(call, *facts.arch, workspace, [&](const auto& launch, const auto& make) {
      auto params = make();
      return start(launch, params, stream, error);
    });
  });
}

#ifndef FASTNORM_HAS_SM90
namespace {

fastnorm_status no_mla_decode(Error& error) {
  return error.set(FASTNORM_ERROR_UNSUPPORTED,
                   "this build has no mla_decode for the device; nearest: the CPU");
}

}  // namespace

fastnorm_status CudaDevice::prepare_mla_decode(const MlaDecodeCall&, Error& error) {
  return no_mla_decode(error);
}
fastnorm_status CudaDevice::run_mla_decode(const MlaDecodeCall&, void*, void*, Error& error) {
  return no_mla_decode(error);
}
#endif

}  // namespace fastnorm::cuda
