// cuda/common/ptx/store_shared.cuh for simt/machine.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/common/ptx/memory.cuh"
#include "simt/machine.h"

namespace fastnorm::ptx {

inline void st_shared_v4(void* address, uint4 v) {
  if (simt::shared_address(address) % sizeof v != 0) simt::fault("a misaligned store");
  std::memcpy(address, &v, sizeof v);
}

}  // namespace fastnorm::ptx
