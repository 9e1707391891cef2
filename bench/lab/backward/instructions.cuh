// The laboratory's kernels in CUDA's words: one instruction a function.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#define LAB_DEVICE __device__ __forceinline__

namespace lab {

LAB_DEVICE uint4 load(const void* address) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

template <bool kStreaming>
LAB_DEVICE void store(void* address, uint4 v) {
  if constexpr (kStreaming) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
  } else {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
  }
}

LAB_DEVICE void store_floats(float* address, const float* f) {
  asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(address), "f"(f[0]), "f"(f[1]),
               "f"(f[2]), "f"(f[3])
               : "memory");
}

LAB_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

LAB_DEVICE uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}

LAB_DEVICE void copy_async(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
LAB_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLater>
LAB_DEVICE void copy_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}
LAB_DEVICE void copy_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

LAB_DEVICE void copy_bulk(uint32_t shared, const void* global, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

LAB_DEVICE void barrier_init(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
LAB_DEVICE void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
LAB_DEVICE void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
LAB_DEVICE void barrier_wait(uint32_t barrier, int phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

LAB_DEVICE void sync_threads(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Programmatic dependent launch of the kernel that folds the blocks.
LAB_DEVICE void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
LAB_DEVICE void grid_trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Shared memory whose size the launch sets.
LAB_DEVICE char* launch_shared() {
  extern __shared__ __align__(128) char lab_launch_shared[];
  return lab_launch_shared;
}

// Two bf16 elements, each rounded to nearest even.
LAB_DEVICE uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace lab
