// Memory that other devices read and write while a kernel runs: 16 bytes arrive in pieces of 4, in
// any order.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

__device__ __forceinline__ uint4 ld_system_v4(const void* address) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

// Into v where `wanted`, without a branch; else v stays.
__device__ __forceinline__ void ld_system_v4_if(uint4& v, const void* address, bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %5, 0;\n"
      "@wanted ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];\n"
      "}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(address), "r"(static_cast<uint32_t>(wanted))
      : "memory");
}

__device__ __forceinline__ void st_system_v4(void* address, uint4 v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ uint32_t ld_system_u32(const void* address) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
  return v;
}

__device__ __forceinline__ void ld_system_u32_if(uint32_t& v, const void* address, bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %2, 0;\n"
      "@wanted ld.relaxed.sys.global.u32 %0, [%1];\n"
      "}"
      : "+r"(v)
      : "l"(address), "r"(static_cast<uint32_t>(wanted))
      : "memory");
}

__device__ __forceinline__ void st_system_u32(void* address, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}

// *address = v where it is 0; what was there.
__device__ __forceinline__ uint32_t set_if_zero(void* address, uint32_t v) {
  uint32_t before;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], 0, %2;"
               : "=r"(before)
               : "l"(address), "r"(v)
               : "memory");
  return before;
}

// Adds to a word of this device, which nothing waits for.
__device__ __forceinline__ void add_global_u32(void* address, uint32_t v) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

// Whether any thread of the block says so, in all of them; a barrier of the block.
__device__ __forceinline__ bool any_of_block(bool v) { return __syncthreads_or(v ? 1 : 0) != 0; }

}  // namespace fastnorm::ptx
