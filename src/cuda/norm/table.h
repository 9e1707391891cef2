// What is known of CUDA devices without CUDA: facts for planning, kernel tables, and a device that
// runs nothing.
#pragma once

#include <memory>
#include <span>

#include "core/backend.h"
#include "cuda/arch.h"

namespace fastnorm::cuda {

// The kernels of an architecture, in the order of its addresses (kernels.h).
std::span<const NormEntry> norm_table(const ArchSpec& arch);

// Facts of a device. `max_cluster_blocks`: what the device can schedule; 1 = no clusters.
DeviceFacts make_facts(const ArchSpec& arch, int32_t device_id, int32_t multiprocessors,
                       int32_t max_cluster_blocks);

// A device of a capability that plans and fills in parameters, and launches nothing.
fastnorm_status create_dry_device(int32_t device_id, const fastnorm_context_options& options,
                                  std::unique_ptr<Device>* device, Error& error);

// The line of variants_*.inc that describes an entry of a table.
const char* variant_text(const NormEntry& entry);

}  // namespace fastnorm::cuda
