// Shared memory whose size the launch sets, and asynchronous copies into it.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

// At a multiple of 128 bytes; uninitialised. Where the lines of asynchronous copies begin elsewhere
// than those of global memory, their stores collide in the banks.
__device__ __forceinline__ char* launch_shared() {
  extern __shared__ __align__(128) char fastnorm_launch_shared[];
  return fastnorm_launch_shared;
}

// One access of 16 bytes. By itself the compiler reads words, which are in the same banks.
__device__ __forceinline__ uint4 ld_shared_v4(const void* address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(address))));
  return v;
}
__device__ __forceinline__ uint2 ld_shared_v2(const void* address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(address))));
  return v;
}

// Copies 16 bytes between multiples of 16, cached in L2 only, or zeroes if they are not `wanted`.
__device__ __forceinline__ void copy_async_or_zero(void* shared, const void* global, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(wanted ? 16 : 0)
               : "memory");
}

// Copies 16 bytes between multiples of 16 if `wanted`, without a branch.
__device__ __forceinline__ void copy_async_if(void* shared, const void* global, bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %2, 0;\n"
      "@wanted cp.async.ca.shared.global [%0], [%1], 16;\n"
      "}" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(static_cast<uint32_t>(wanted))
      : "memory");
}

// An asynchronous copy that is cached in L2 only.
__device__ __forceinline__ void copy_async_past_l1_if(void* shared, const void* global,
                                                      bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global [%0], [%1], 16;\n"
      "}" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(static_cast<uint32_t>(wanted))
      : "memory");
}

// Makes a group of the thread's copies since the last commit.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all groups of the thread except the last kLater have arrived.
template <int kLater>
__device__ __forceinline__ void copy_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// Waits until the thread's own copies have arrived. Other threads see them after a barrier.
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace fastnorm::ptx
