// One CUDA device: what was read of it once, its kernels' addresses, and the primary context.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>

#include "core/backend.h"
#include "cuda/norm/kernels.h"
#include "cuda/norm/launch_params.h"
#include "cuda/norm/table.h"

// Leaves the function with a device error if `expression` fails.
#define FASTNORM_CUDA_TRY(expression)                                                              \
  do {                                                                                             \
    if (const cudaError_t cuda_try = (expression); __builtin_expect(cuda_try != cudaSuccess, 0)) { \
      return ::fastnorm::cuda::device_error(#expression, cuda_try, error);                         \
    }                                                                                              \
  } while (0)

namespace fastnorm::cuda {

// Sets the text and the code of a failed CUDA call, and clears what is not sticky.
fastnorm_status device_error(const char* expression, cudaError_t code, Error& error);

// The kernels of one architecture in this build.
struct KernelTable {
  const ArchSpec* arch;
  KernelParts parts;

  NormKernel at(int32_t index) const;  // in the order of norm_table()
  NormPairKernel pair_at(int32_t index, GridForm form) const;
};

// nullptr if this build has no kernels of the architecture.
const KernelTable* kernel_table(const ArchSpec& arch);

// The driver's functions that the runtime has no equivalent of, found through it.
struct Driver {
  int (*get_current)(void** context) = nullptr;
  int (*set_current)(void* context) = nullptr;
  int (*get_device)(int* device) = nullptr;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(const DeviceFacts& facts, const KernelTable& kernels, const Driver& driver,
             void* primary)
      : Device(facts),
        kernels_(kernels),
        driver_(driver),
        primary_(primary),
        allowed_large_(
            std::make_unique<std::atomic<bool>[]>(cuda::norm_table(*facts.arch).size())) {}

  std::span<const NormEntry> norm_table() const override { return cuda::norm_table(*facts.arch); }
  const char* variant_text(const NormEntry& entry) const override {
    return cuda::variant_text(entry);
  }
  fastnorm_status prepare_norm(std::span<const NormCall> calls, Error& error) override;
  fastnorm_status run_norm(std::span<const NormCall> calls, void* workspace, void* stream,
                           Error& error) override;
  GridCount grids(std::span<const NormCall> calls) const override { return count_grids(calls); }

 private:
  // Runs body() with this device current, and makes current again what was.
  template <typename Body>
  fastnorm_status with_device(Error& error, Body body);
  // Lets the kernel have clusters of more blocks or more shared memory than are portable, where it does. Once: the runtime remembers it.
  fastnorm_status allow_large(const NormPlan& plan, const void* kernel, Error& error);
  // One launch, on the current device.
  fastnorm_status run_together(std::span<const NormCall> calls, cudaStream_t stream, Error& error);

  const KernelTable& kernels_;
  const Driver driver_;
  void* const primary_;                                       // the device's primary CUDA context
  const std::unique_ptr<std::atomic<bool>[]> allowed_large_;  // by kernel: allowed already
};

}  // namespace fastnorm::cuda
