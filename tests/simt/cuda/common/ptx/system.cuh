// cuda/common/ptx/system.cuh for simt/machine.h. Who finds that something is missing lets the other
// threads run.
#pragma once

#include "cuda/common/ptx/memory.cuh"
#include "simt/machine.h"

namespace fastnorm::ptx {

template <class Word>
Word load_of_devices(const void* address) {
  simt::look_at_late_stores(address, sizeof(Word));
  return load<Word>(address);
}

inline uint4 ld_system_v4(const void* address) {
  const auto v = load_of_devices<uint4>(address);
  constexpr uint32_t kEmpty = 0xffffffff;
  if (v.x == kEmpty || v.y == kEmpty || v.z == kEmpty || v.w == kEmpty) simt::yield();
  return v;
}
inline void ld_system_v4_if(uint4& v, const void* address, bool wanted) {
  if (wanted) v = ld_system_v4(address);
}
inline void st_system_v4(void* address, uint4 v) {
  simt::store_to_devices(address, {v.x, v.y, v.z, v.w});
}
inline uint32_t ld_system_u32(const void* address) { return load_of_devices<uint32_t>(address); }
inline void ld_system_u32_if(uint32_t& v, const void* address, bool wanted) {
  if (!wanted) return;
  v = load_of_devices<uint32_t>(address);
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
