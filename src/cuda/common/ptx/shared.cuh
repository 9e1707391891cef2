// Shared memory that the launch sizes, and copies into it that go on while their thread does.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

// At a multiple of 16 bytes, uninitialised.
__device__ __forceinline__ char* launch_shared() {
  extern __shared__ uint4 fastnorm_launch_shared[];
  return reinterpret_cast<char*>(fastnorm_launch_shared);
}

// Of all their bytes at once: left to itself the compiler reads words, which lie in the same banks.
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

// 16 bytes, from and to multiples of 16, where `wanted`, without a branch.
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

// The same, cached in L2 only.
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

// The thread's copies since the last commit are a group.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all groups of the thread but the last kLater are there.
template <int kLater>
__device__ __forceinline__ void copy_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// Until the thread's own copies are there; others see them after a barrier.
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace fastnorm::ptx
