// Global memory, one instruction a function. All accesses are volatile: they stay in program order
// among themselves, which keeps every load ahead of the stores that may go to the same row in
// place.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

__device__ __forceinline__ uint4 ld_global_v4(const void* address) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

// Not expected to be read again: the line does not stay in L1.
__device__ __forceinline__ uint4 ld_global_cs_v4(const void* address) {
  uint4 v;
  asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

// The same as ld_global_v4() into v where `wanted`, without a branch; else v stays.
__device__ __forceinline__ void ld_global_v4_if(uint4& v, const void* address, bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %5, 0;\n"
      "@wanted ld.global.v4.u32 {%0,%1,%2,%3}, [%4];\n"
      "}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(address), "r"(static_cast<uint32_t>(wanted)));
}

__device__ __forceinline__ void ld_global_cs_v4_if(uint4& v, const void* address, bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %5, 0;\n"
      "@wanted ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];\n"
      "}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(address), "r"(static_cast<uint32_t>(wanted)));
}

__device__ __forceinline__ void ld_global_v2_if(uint32_t& x, uint32_t& y, const void* address,
                                                bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %3, 0;\n"
      "@wanted ld.global.v2.u32 {%0,%1}, [%2];\n"
      "}"
      : "+r"(x), "+r"(y)
      : "l"(address), "r"(static_cast<uint32_t>(wanted)));
}

__device__ __forceinline__ void ld_global_u32_if(uint32_t& v, const void* address, bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %2, 0;\n"
      "@wanted ld.global.u32 %0, [%1];\n"
      "}"
      : "+r"(v)
      : "l"(address), "r"(static_cast<uint32_t>(wanted)));
}

__device__ __forceinline__ void ld_global_u16_if(uint32_t& v, const void* address, bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %2, 0;\n"
      "@wanted ld.global.u16 %0, [%1];\n"
      "}"
      : "+r"(v)
      : "l"(address), "r"(static_cast<uint32_t>(wanted)));
}

// A parameter as a value of its own, so that each test of it does not become a narrower read by
// itself. (The assembler may still read the parameter again rather than keep a register.)
__device__ __forceinline__ uint32_t in_register(uint32_t parameter) {
  asm volatile("" : "+r"(parameter));
  return parameter;
}

__device__ __forceinline__ float in_register(float value) {
  asm volatile("" : "+f"(value));
  return value;
}

template <class Byte>
__device__ __forceinline__ Byte* in_register(Byte* address) {
  asm volatile("" : "+l"(address));
  return address;
}

// Fills kCount vectors with a word, by a branch, unless they will be loaded: then what they hold
// until that is not known.
template <int kCount>
__device__ __forceinline__ void fill_unless(uint4 (&v)[kCount], uint32_t word, bool loaded) {
#pragma unroll
  for (uint4& a : v) asm volatile("" : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w));
  if (!loaded) {
#pragma unroll
    for (uint4& a : v) {
      asm volatile("mov.b32 %0, %4;\n mov.b32 %1, %4;\n mov.b32 %2, %4;\n mov.b32 %3, %4;"
                   : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w)
                   : "r"(word));
    }
  }
}

// A side of a branch that does nothing but is there. Where the other side changes many values, the
// compiler would copy them all ahead of the branch.
__device__ __forceinline__ void keep_branch() { asm volatile(""); }

__device__ __forceinline__ uint2 ld_global_v2(const void* address) {
  uint2 v;
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address));
  return v;
}

__device__ __forceinline__ float ld_global_f32(const void* address) {
  float v;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(address));
  return v;
}

__device__ __forceinline__ uint32_t ld_global_u32(const void* address) {
  uint32_t v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(address));
  return v;
}

__device__ __forceinline__ uint32_t ld_global_u16(const void* address) {
  uint16_t v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(address));
  return v;
}

// Asks for `bytes` (a multiple of 16) from a 16-byte aligned address to be brought into L2. sm_90
// and later; else nothing.
__device__ __forceinline__ void prefetch_l2(const void* address, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes) : "memory");
#endif
}

__device__ __forceinline__ void st_global_v4(void* address, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void st_global_v2(void* address, uint2 v) {
  asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(address), "r"(v.x), "r"(v.y) : "memory");
}

__device__ __forceinline__ void st_global_u32(void* address, uint32_t v) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}

__device__ __forceinline__ void st_global_u16(void* address, uint32_t v) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(static_cast<uint16_t>(v)) : "memory");
}

__device__ __forceinline__ void st_global_u8(void* address, uint32_t v) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}

// *address = max(*address, v), at once; in any order with other threads'.
__device__ __forceinline__ void red_max_global_s32(void* address, int32_t v) {
  asm volatile("red.relaxed.gpu.global.max.s32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}

}  // namespace fastnorm::ptx
