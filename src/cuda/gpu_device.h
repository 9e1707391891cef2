// What devices with the kernels of a GPU have in common, whatever becomes of their launches.
// CUDA-free.
#pragma once

#include <memory>

#include "core/backend.h"
#include "cuda/arch.h"

namespace fastnorm::cuda {

// Facts of a device. `max_cluster_blocks`: what the device can schedule; 1 = no clusters.
DeviceFacts make_facts(const ArchSpec& arch, int32_t device_id, int32_t multiprocessors,
                       int32_t max_cluster_blocks);

// The line of a list that describes the kernel of a call.
const char* variant_text(const NormCall& call);

class GpuDevice : public Device {
 public:
  explicit GpuDevice(const DeviceFacts& facts);

  const char* variant_text(const NormCall& call) const final { return cuda::variant_text(call); }
};

// A device of a capability that plans and fills in parameters, and launches nothing.
fastnorm_status create_dry_device(int32_t device_id, const fastnorm_context_options& options,
                                  std::unique_ptr<Device>* device, Error& error);

}  // namespace fastnorm::cuda
