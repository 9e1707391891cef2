// Stores to shared memory in order with the loads of shared.cuh.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

// One access of 16 bytes, to a multiple of 16. Other threads read it behind a barrier.
__device__ __forceinline__ void st_shared_v4(void* address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(address))),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}

__device__ __forceinline__ void st_shared_u32(void* address, uint32_t v) {
  asm volatile(
      "st.shared.u32 [%0], %1;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(address))),
      "r"(v));
}

}  // namespace fastnorm::ptx
