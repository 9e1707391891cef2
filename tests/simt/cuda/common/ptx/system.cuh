// cuda/common/ptx/system.cuh for simt/machine.h. A vector arrives in pieces, and between them other
// threads may look; who finds that something is missing lets the others run.
#pragma once

#include <cstring>

#include "cuda/common/ptx/memory.cuh"
#include "simt/machine.h"

namespace fastnorm::ptx {

inline uint4 ld_system_v4(const void* address) {
  const uint4 v = load<uint4>(address);
  constexpr uint32_t kEmpty = 0xffffffff;
  if (v.x == kEmpty || v.y == kEmpty || v.z == kEmpty || v.w == kEmpty) simt::yield();
  return v;
}
inline void ld_system_v4_if(uint4& v, const void* address, bool wanted) {
  if (wanted) v = ld_system_v4(address);
}
inline void st_system_v4(void* address, uint4 v) {
  static uint32_t stores = 0;
  auto* const words = static_cast<uint32_t*>(address);
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) simt::fault("a misaligned store");
  store(words + 3, v.w);
  store(words, v.x);
  if (++stores % 61 == 0) simt::yield();
  store(words + 2, v.z);
  store(words + 1, v.y);
}
inline uint32_t ld_system_u32(const void* address) { return load<uint32_t>(address); }
inline void ld_system_u32_if(uint32_t& v, const void* address, bool wanted) {
  if (!wanted) return;
  v = load<uint32_t>(address);
  if (v == 0xffffffff) simt::yield();
}
inline void st_system_u32(void* address, uint32_t v) { store(address, v); }
inline uint32_t set_if_zero(void* address, uint32_t v) {
  const auto before = load<uint32_t>(address);  // threads take turns
  if (before == 0) store(address, v);
  return before;
}
inline void add_global_u32(void* address, uint32_t v) {
  store(address, load<uint32_t>(address) + v);
}
inline uint64_t nanoseconds() { return simt::look_at_clock(); }
inline bool any_of_block(bool v) { return simt::any_of_block(v); }

}  // namespace fastnorm::ptx
