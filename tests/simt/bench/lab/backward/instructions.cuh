// bench/lab/backward/instructions.cuh for simt/machine.h. Blocks run one after the other, so what
// they share is static.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ref/dtype.h"
#include "simt/machine.h"

#define LAB_DEVICE inline
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))

struct float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float __ldg(const float* address) { return *address; }
inline float4 __ldcg(const float4* address) { return *address; }
inline void __stcg(float* address, float v) { *address = v; }
using __nv_bfloat16 = uint16_t;

namespace lab {

using std::max;
using std::min;

inline uint4 load(const void* address) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) simt::fault("a misaligned load");
  uint4 v;
  std::memcpy(&v, address, sizeof v);
  return v;
}
template <bool kStreaming>
inline void store(void* address, uint4 v) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) simt::fault("a misaligned store");
  std::memcpy(address, &v, sizeof v);
}
inline void store_floats(float* address, const float* f) {
  std::memcpy(address, f, 4 * sizeof(float));
}

inline char* launch_shared() { return static_cast<char*>(simt::launch_shared()); }

// The distance from the launch's memory, or with the highest bit from a static object.
constexpr uint32_t kStatic = 0x80000000, kMiddle = 0x40000000;
inline char anchor;
inline uint32_t shared_address(const void* pointer) {
  const auto* const p = static_cast<const char*>(pointer);
  const ptrdiff_t distance = p - launch_shared();
  if (distance >= 0 && distance < 256 * 1024) return static_cast<uint32_t>(distance);
  return kStatic | static_cast<uint32_t>(p - &anchor + kMiddle);
}
inline char* pointer_of(uint32_t address) {
  if ((address & kStatic) == 0) return launch_shared() + address;
  return &anchor + static_cast<ptrdiff_t>(address & ~kStatic) - kMiddle;
}

inline uint4 load_shared(uint32_t address) { return load(pointer_of(address)); }

inline void copy_async(uint32_t shared, const void* global) {
  load(global);
  simt::copy_async(pointer_of(shared), global);
}
inline void copy_commit() { simt::copy_async_commit(); }
template <int kLater>
inline void copy_wait_group() {
  simt::copy_async_wait_group(kLater);
}
inline void copy_wait() { simt::copy_async_wait(); }

// A barrier of one arrival: its phase, and the bytes that are to come in it.
struct Barrier {
  int32_t phase, bytes;
};
inline Barrier& barrier_of(uint32_t address) {
  return *reinterpret_cast<Barrier*>(pointer_of(address));
}
inline void barrier_init(uint32_t barrier) { barrier_of(barrier) = {}; }
inline void fence_barrier_init() {}
inline void barrier_expect(uint32_t barrier, int bytes) {
  if (barrier_of(barrier).bytes != 0) simt::fault("a barrier whose phase has not ended");
  barrier_of(barrier).bytes = bytes;
  if (bytes == 0) barrier_of(barrier).phase ^= 1;
}
inline void copy_bulk(uint32_t shared, const void* global, int bytes, uint32_t barrier) {
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0 || bytes % 16 != 0)
    simt::fault("a misaligned bulk copy");
  std::memcpy(pointer_of(shared), global, static_cast<size_t>(bytes));
  Barrier& of = barrier_of(barrier);
  if ((of.bytes -= bytes) == 0) of.phase ^= 1;
}
inline void barrier_wait(uint32_t barrier, int phase) {
  while (barrier_of(barrier).phase == phase) simt::yield();
}

inline void sync_threads(int number, int threads) {
  simt::sync_threads(static_cast<unsigned>(number), static_cast<unsigned>(threads));
}
inline void grid_wait() { simt::current->waited = true; }
inline void grid_trigger() { simt::trigger(); }

inline uint32_t pack(float low, float high) {
  return fastnorm::ref::encode_bf16(low) | fastnorm::ref::encode_bf16(high) << 16;
}

}  // namespace lab
