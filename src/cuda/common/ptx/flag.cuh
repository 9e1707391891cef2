// Words in global memory by which thread blocks of one device hand data to each other.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

// The word's value before, which becomes one more. Orders nothing.
__device__ __forceinline__ int32_t take_number(int32_t* word) {
  int32_t before;
  asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(word)
               : "memory");
  return before;
}

// What this thread has written or waited for at a barrier is visible to whoever sees the flag.
__device__ __forceinline__ void raise_flag(int32_t* flag) {
  asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(flag) : "memory");
}

__device__ __forceinline__ void wait_for_flag(const int32_t* flag) {
  int32_t value;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  } while (value == 0);
}

}  // namespace fastnorm::ptx
