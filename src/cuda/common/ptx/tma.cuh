// The bulk copy engine, copies of 16 bytes by threads, and the barriers in shared memory that count
// arrivals. sm_90.
#pragma once

#include <cstdint>

namespace fastnorm::ptx {

// How L2 keeps what a bulk copy reads. The values are policies of createpolicy.
inline constexpr uint64_t kEvictFirst = 0x12f0000000000000ull;
inline constexpr uint64_t kEvictNormal = 0x1000000000000000ull;

// Copies a box of a tensor map of rank 4 into shared memory. `barrier` counts its bytes.
__device__ __forceinline__ void tma_load_4d(uint32_t shared, const void* map, uint32_t barrier,
                                            int x, int y, int z, int w, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_"
      "hint [%0], [%1, {%3,%4,%5,%6}], [%2], %7;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
      : "memory");
}

// Copies a box of shared memory to a tensor. Elements outside the tensor are not written.
__device__ __forceinline__ void tma_store_4d(const void* map, uint32_t shared, int x, int y, int z,
                                             int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2,%3,%4,%5}], [%1];" ::"l"(
          map),
      "r"(shared), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until the thread's stores have read shared memory.
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

__device__ __forceinline__ void tma_prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies 16 bytes, cached in L2 only.
__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// The same if `wanted`; otherwise writes 16 bytes of zeros.
__device__ __forceinline__ void copy_async_or_zero_16(uint32_t shared, const void* global,
                                                      bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(wanted ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of the thread's groups of copies are in flight.
template <int kPending>
__device__ __forceinline__ void copy_async_wait_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Makes the thread's accesses of shared memory visible to wgmma and the copy engine.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Whether the phase with this parity has ended.
__device__ __forceinline__ bool mbarrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace fastnorm::ptx
