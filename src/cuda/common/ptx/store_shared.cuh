// Stores to shared memory in order with the loads of shared.cuh.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

// One access of 16 bytes, to a multiple of 16, that this thread alone reads again.
__device__ __forceinline__ void st_shared_v4(void* address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(address))),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}

}  // namespace fastnorm::ptx
