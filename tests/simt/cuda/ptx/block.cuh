// cuda/ptx/block.cuh for simt/machine.h.
#pragma once

#include "simt/machine.h"

namespace fastnorm::ptx {

inline uint32_t block_index() { return simt::current->block.x; }

template <class T>
inline T& block_shared() {
  static char key;
  return *static_cast<T*>(simt::block_object(&key, sizeof(T), alignof(T)));
}

}  // namespace fastnorm::ptx
