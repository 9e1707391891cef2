// What belongs to a thread block: its number, its shared memory and its warps.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

// The numbers of the block and of the thread in it, read again each time. For values that should
// not stay in a register.
__device__ __forceinline__ uint32_t block_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}
__device__ __forceinline__ uint32_t thread_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// The block's object of this type in shared memory, uninitialised.
template <class T>
__device__ __forceinline__ T& block_shared() {
  __shared__ T object;
  return object;
}

// A barrier for kThreads threads, a multiple of 32. `number` is 1 to 15.
template <int kThreads>
__device__ __forceinline__ void sync_threads(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// One thread of the warp, always the same one. For whole warps. Behind a branch on it the compiler
// issues a bulk copy once; behind one on a lane's number it loops over the threads that are there.
__device__ __forceinline__ bool elect_thread() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// The greatest value of a warp's 32 lanes, in all of them.
__device__ __forceinline__ uint32_t warp_greatest(uint32_t v) { return __reduce_max_sync(~0u, v); }

}  // namespace fastnorm::ptx
