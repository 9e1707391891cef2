// cuda/common/ptx/grid.cuh for simt/machine.h, which runs one kernel at a time: waits and triggers
// are only noted.
#pragma once

#include "simt/machine.h"

namespace fastnorm::ptx {

inline void grid_wait() { simt::current->waited = true; }
inline void grid_wait_if(bool wanted) {
  if (wanted) grid_wait();
}
inline void grid_trigger() { simt::trigger(); }

}  // namespace fastnorm::ptx
