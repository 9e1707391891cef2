// A device whose kernels simt/machine.h runs: those of sm_100f and of sm_90, in host memory.
#pragma once

#include <memory>

#include "core/backend.h"
#include "simt/machine.h"

namespace simt {

std::unique_ptr<fastnorm::Device> make_device(Order order);

// Whether kernel `index` of the table was compiled: see -Dsimt_sample.
bool has_kernel(int32_t index);

}  // namespace simt
