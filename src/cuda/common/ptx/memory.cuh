// Global memory, one instruction per function. All accesses are volatile, so they stay in program
// order. That keeps every load before the stores that may overwrite the same row.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

// data + row * stride, in one instruction where 64-bit arithmetic takes several.
__device__ __forceinline__ char* advance(char* data, uint32_t row, int32_t stride) {
  char* r;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(r) : "r"(row), "r"(stride), "l"(data));
  return r;
}

__device__ __forceinline__ uint4 ld_global_v4(const void* address) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

// A streaming load: the line does not stay in L1.
__device__ __forceinline__ uint4 ld_global_cs_v4(const void* address) {
  uint4 v;
  asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

// ld_global_v4() into v if `wanted`, without a branch. Otherwise v keeps its value.
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

// A value that is loaded where it is wanted; otherwise it stays. Without a branch: in an unrolled
// loop a compiler would copy what follows each one. `cg`: cached in L2 only.
#define LOAD_IF(name, type, constraint, load)                                       \
  __device__ __forceinline__ void name(type& v, const void* address, bool wanted) { \
    asm volatile(                                                                   \
        "{\n"                                                                       \
        ".reg .pred wanted;\n"                                                      \
        "setp.ne.u32 wanted, %2, 0;\n"                                              \
        "@wanted " load                                                             \
        " %0, [%1];\n"                                                              \
        "}"                                                                         \
        : constraint(v)                                                             \
        : "l"(address), "r"(static_cast<uint32_t>(wanted)));                        \
  }
LOAD_IF(ld_global_u32_if, uint32_t, "+r", "ld.global.u32")
LOAD_IF(ld_global_f32_if, float, "+f", "ld.global.f32")
LOAD_IF(ld_global_u8_if, uint32_t, "+r", "ld.global.u8")
LOAD_IF(ld_global_u16_if, uint32_t, "+r", "ld.global.u16")
LOAD_IF(ld_global_cg_f32_if, float, "+f", "ld.global.cg.f32")
#undef LOAD_IF

// From L2, where another kernel or block has written.
__device__ __forceinline__ float4 ld_global_cg_v4(const void* address) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(address));
  return v;
}

__device__ __forceinline__ void ld_global_cg_v4_if(float4& v, const void* address, bool wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %5, 0;\n"
      "@wanted ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];\n"
      "}"
      : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w)
      : "l"(address), "r"(static_cast<uint32_t>(wanted)));
}

// A parameter as a value of its own. Otherwise each test of it becomes a narrower load. The
// assembler may still load it again to save a register.
__device__ __forceinline__ uint32_t in_register(uint32_t parameter) {
  asm volatile("" : "+r"(parameter));
  return parameter;
}

__device__ __forceinline__ float in_register(float value) {
  asm volatile("" : "+f"(value));
  return value;
}

__device__ __forceinline__ uint4 in_register(uint4 v) {
  return make_uint4(in_register(v.x), in_register(v.y), in_register(v.z), in_register(v.w));
}

template <class Byte>
__device__ __forceinline__ Byte* in_register(Byte* address) {
  asm volatile("" : "+l"(address));
  return address;
}

// Fills kCount vectors with a word, unless they will be loaded, which is a branch. In that case
// their contents are undefined until then.
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

// An empty side of a branch. Without it, if the other side changes many values, the compiler copies
// them all ahead of the branch.
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

// Asks for `bytes` bytes (a multiple of 16) from a 16-byte aligned address to be brought into L2.
// On sm_90 and later; otherwise does nothing.
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

// *address = max(*address, v) as one atomic operation.
__device__ __forceinline__ void red_max_global_s32(void* address, int32_t v) {
  asm volatile("red.relaxed.gpu.global.max.s32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}

}  // namespace fastnorm::ptx
