// A device whose kernels simt/machine.h runs: those of sm_90, in host memory.
#pragma once

#include <memory>
#include <string>

#include "core/backend.h"
#include "simt/machine.h"

namespace simt {

std::unique_ptr<fastnorm::Device> make_device(Order order);

// Runs a planned call. What was wrong with its accesses, "" = nothing.
std::string run(const fastnorm::AnyCall& call, void* workspace, Order order);

// Whether the kernel of entry `index` of the norm's table was compiled: see -Dsimt_sample.
bool has_kernel(int32_t index);

}  // namespace simt
