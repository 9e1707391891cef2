// One CUDA device: the facts read once, its kernels, and the primary context.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "core/backend.h"
#include "core/common/check.h"
#include "cuda/families.h"
#include "cuda/gpu_device.h"
#include "cuda/launch.h"

// Leaves the function with a device error if `expression` fails.
#define FASTNORM_CUDA_TRY(expression)                                                              \
  do {                                                                                             \
    if (const cudaError_t cuda_try = (expression); __builtin_expect(cuda_try != cudaSuccess, 0)) { \
      return ::fastnorm::cuda::device_error(#expression, cuda_try, error);                         \
    }                                                                                              \
  } while (0)

namespace fastnorm::cuda {

// Sets the text and the code of a failed CUDA call, and clears errors that are not sticky.
fastnorm_status device_error(const char* expression, cudaError_t code, Error& error);

// The kernels of one architecture in this build: the addresses of those of a family, by their
// numbers (kernels.h), at the family's place in Families.
struct ArchKernels {
  const ArchSpec* arch;
  std::vector<const void*> of[Families::kCount];
};

// nullptr if this build has no kernels for the architecture.
const ArchKernels* arch_kernels(const ArchSpec& arch);

struct DeviceKernel {
  const void* address = nullptr;
  std::atomic<uint32_t> allowed_bytes = 0;  // of shared memory that a launch may ask for
};

// Starts a kernel on the current device, which lets it have the shape's shared memory.
// `arguments`: the addresses of the kernel's parameters.
fastnorm_status launch_kernel(const void* kernel, const LaunchShape& shape, void** arguments,
                              cudaStream_t stream, Error& error);

// Functions of the driver that the runtime does not offer. They are found through the runtime.
struct Driver {
  int (*get_current)(void** context) = nullptr;
  int (*set_current)(void* context) = nullptr;
  int (*get_device)(int* device) = nullptr;
  void* encode_tiled = nullptr;  // cuTensorMapEncodeTiled
};

// Its functions are in launch.cpp, and those for MLA decode and for peers in the folders of these
// families. device.cpp finds devices and creates objects of this class.
class CudaDevice final : public GpuDevice {
 public:
  CudaDevice(const DeviceFacts& facts, const ArchKernels& kernels, const Driver& driver,
             void* primary);

  fastnorm_status prepare(const AnyCall& call, Error& error) override;
  fastnorm_status run(const AnyCall& call, void* workspace, void* stream, Error& error) override;
  fastnorm_status check_peers(Error&) const override { return FASTNORM_OK; }
  fastnorm_status create_peer(const PeerDesc& desc, void* const* buffers,
                              std::unique_ptr<PeerLink>* link, Error& error) override;

  // Runs body() with this device current, then restores the device that was current, also where
  // body() throws.
  template <typename Body>
  fastnorm_status with_device(Error& error, Body body);

  // On the current device: loads a launch's kernel, and lets it have its shared memory.
  template <class Family>
  fastnorm_status load(const Launch<Family>& launch, Error& error) {
    DeviceKernel& kernel = kernel_of<Family>(launch.kernel);
    cudaFuncAttributes attributes;  // reading them loads the kernel
    FASTNORM_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel.address));
    return allow(kernel, launch.shape.shared_bytes, error);
  }
  // On the current device: what can fail before anything is started.
  template <class Family>
  fastnorm_status allow(const Launch<Family>& launch, Error& error) {
    return allow(kernel_of<Family>(launch.kernel), launch.shape.shared_bytes, error);
  }
  // On the current device: starts a launch.
  template <class Family, class Params>
  fastnorm_status start(const Launch<Family>& launch, Params& params, void* stream, Error& error) {
    void* arguments[] = {&params};
    DeviceKernel& kernel = kernel_of<Family>(launch.kernel);
    FASTNORM_TRY(allow(kernel, launch.shape.shared_bytes, error));
    return launch_kernel(kernel.address, launch.shape, arguments, static_cast<cudaStream_t>(stream),
                         error);
  }

 private:
  template <class Family>
  DeviceKernel& kernel_of(int32_t number) {
    return kernels_[Families::index_of<Family>()][number];
  }
  fastnorm_status allow(DeviceKernel& kernel, uint32_t shared_bytes, Error& error) {
    const bool allowed = shared_bytes <= kernel.allowed_bytes.load(std::memory_order_relaxed);
    return __builtin_expect(allowed, 1) ? FASTNORM_OK : allow_more(kernel, shared_bytes, error);
  }
  fastnorm_status allow_more(DeviceKernel& kernel, uint32_t shared_bytes, Error& error);
  // MLA decode has launches of its own.
  fastnorm_status prepare_mla_decode(const MlaDecodeCall& call, Error& error);
  fastnorm_status run_mla_decode(const MlaDecodeCall& call, void* workspace, void* stream,
                                 Error& error);

  std::unique_ptr<DeviceKernel[]> kernels_[Families::kCount];
  std::mutex allowing_;  // one thread at a time changes a kernel's shared memory
  const Driver driver_;
  void* const primary_;  // the device's primary CUDA context
  // Whether the kernels are, by f16, and the profile or the format of gathered rows.
  std::atomic<bool> mla_decode_loaded_[2][3 + kMlaCacheFormats] = {};
};

template <typename Body>
fastnorm_status CudaDevice::with_device(Error& error, Body body) {
  void* before = nullptr;
  driver_.get_current(&before);
  if (__builtin_expect(before == primary_, 1)) return body();
  if (before != nullptr) {
    int id = -1;
    // A context other than the primary one has its own streams. Work queued here would not be
    // ordered with them.
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
  const struct Restore {
    ~Restore() { driver.set_current(before); }
    const Driver& driver;
    void* const before;
  } restore{driver_, before};
  return body();
}

}  // namespace fastnorm::cuda
