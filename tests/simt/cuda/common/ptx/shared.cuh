// cuda/common/ptx/shared.cuh for simt/machine.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/common/ptx/memory.cuh"
#include "simt/machine.h"

namespace fastnorm::ptx {

inline char* launch_shared() { return static_cast<char*>(simt::launch_shared()); }

template <class Word>
inline Word load_shared(const void* address) {
  if (simt::shared_address(address) % sizeof(Word) != 0) simt::fault("a misaligned load");
  Word word;
  std::memcpy(&word, address, sizeof word);
  return word;
}
inline uint4 ld_shared_v4(const void* address) { return load_shared<uint4>(address); }
inline uint2 ld_shared_v2(const void* address) { return load_shared<uint2>(address); }

inline void copy_async_if(void* shared, const void* global, bool wanted) {
  if (!wanted) return;
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0) simt::fault("a misaligned copy");
  load<uint4>(global);
  simt::copy_async(shared, global);
}

inline void copy_async_or_zero(void* shared, const void* global, bool wanted) {
  static constexpr uint4 kZero = {};
  if (wanted) return copy_async_if(shared, global, true);
  simt::copy_async(shared, &kZero);
}
inline void copy_async_past_l1_if(void* shared, const void* global, bool wanted) {
  copy_async_if(shared, global, wanted);
}
inline void copy_async_commit() { simt::copy_async_commit(); }
template <int kLater>
inline void copy_async_wait_group() {
  simt::copy_async_wait_group(kLater);
}

inline void copy_async_wait() { simt::copy_async_wait(); }

}  // namespace fastnorm::ptx
