// cuda/common/ptx/block.cuh for simt/machine.h.
#pragma once

#include <bit>

#include "simt/machine.h"

namespace fastnorm::ptx {

inline uint32_t block_index() { return simt::current->block.x; }
inline uint32_t thread_index() { return simt::current->thread.x; }

template <class T>
inline T& block_shared() {
  static char key;
  return *static_cast<T*>(simt::block_object(&key, sizeof(T), alignof(T)));
}

template <int kThreads>
inline void sync_threads(int number) {
  simt::sync_threads(static_cast<unsigned>(number), kThreads);
}

inline uint32_t warp_greatest(uint32_t v) {
  for (unsigned half = 16; half >= 1; half /= 2) {
    const uint32_t other = simt::shuffle(v, simt::current->lane ^ half);
    v = v > other ? v : other;
  }
  return v;
}

}  // namespace fastnorm::ptx
