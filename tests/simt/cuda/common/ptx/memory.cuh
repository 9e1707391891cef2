// cuda/common/ptx/memory.cuh for simt/machine.h: the same accesses, checked for alignment and that
// none comes ahead of the grid's wait. Those that kernels make without these functions are not
// seen: statistics, and the static scale of a streamed row.
#pragma once

#include <cstdint>
#include <cstring>

#include "simt/machine.h"

namespace fastnorm::ptx {

template <class Word>
inline Word load(const void* address) {
  if (reinterpret_cast<uintptr_t>(address) % sizeof(Word) != 0) simt::fault("a misaligned load");
  if (!simt::current->waited) simt::early_load(address, sizeof(Word));
  Word word;
  std::memcpy(&word, address, sizeof word);
  return word;
}

template <class Word>
inline void store(void* address, Word word) {
  if (reinterpret_cast<uintptr_t>(address) % sizeof(Word) != 0) simt::fault("a misaligned store");
  if (!simt::current->waited) simt::early_store(address, sizeof word);
  std::memcpy(address, &word, sizeof word);
}

inline char* advance(char* data, uint32_t row, int32_t stride) {
  return data + int64_t{static_cast<int32_t>(row)} * stride;
}

inline uint4 ld_global_v4(const void* address) { return load<uint4>(address); }
inline uint4 ld_global_cs_v4(const void* address) { return load<uint4>(address); }
inline void ld_global_v4_if(uint4& v, const void* address, bool wanted) {
  if (wanted) v = load<uint4>(address);
}
inline void ld_global_cs_v4_if(uint4& v, const void* address, bool wanted) {
  ld_global_v4_if(v, address, wanted);
}
inline void ld_global_v2_if(uint32_t& x, uint32_t& y, const void* address, bool wanted) {
  if (!wanted) return;
  const auto v = load<uint2>(address);
  x = v.x, y = v.y;
}
inline void ld_global_u32_if(uint32_t& v, const void* address, bool wanted) {
  if (wanted) v = load<uint32_t>(address);
}
inline void ld_global_u16_if(uint32_t& v, const void* address, bool wanted) {
  if (wanted) v = load<uint16_t>(address);
}
inline uint32_t in_register(uint32_t parameter) { return parameter; }
inline float in_register(float value) { return value; }
inline uint4 in_register(uint4 v) { return v; }
template <class Byte>
inline Byte* in_register(Byte* address) {
  return address;
}
template <int kCount>
void fill_unless(uint4 (&v)[kCount], uint32_t word, bool loaded) {
  constexpr uint32_t kUnknown = 0xffc1ffc1;  // NaN in every dtype
  if (loaded) word = kUnknown;
  for (uint4& a : v) a = {word, word, word, word};
}
inline void keep_branch() {}
inline uint2 ld_global_v2(const void* address) { return load<uint2>(address); }
inline float ld_global_f32(const void* address) { return load<float>(address); }
inline uint32_t ld_global_u32(const void* address) { return load<uint32_t>(address); }
inline uint32_t ld_global_u16(const void* address) { return load<uint16_t>(address); }

inline void prefetch_l2(const void* address, uint32_t bytes) { simt::prefetch(address, bytes); }

inline void st_global_v4(void* address, uint4 v) { store(address, v); }
inline void st_global_v2(void* address, uint2 v) { store(address, v); }
inline void st_global_u32(void* address, uint32_t v) { store(address, v); }
inline void st_global_u16(void* address, uint32_t v) { store(address, static_cast<uint16_t>(v)); }
inline void st_global_u8(void* address, uint32_t v) { store(address, static_cast<uint8_t>(v)); }
inline void red_max_global_s32(void* address, int32_t v) {
  const auto there = load<int32_t>(address);  // threads take turns
  store(address, v > there ? v : there);
}

}  // namespace fastnorm::ptx
