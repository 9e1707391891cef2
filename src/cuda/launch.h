// One launch of a planned call, as data. CUDA-free.
#pragma once

#include <cstdint>

namespace fastnorm::cuda {

struct LaunchShape {
  uint32_t blocks_x = 1, blocks_y = 1;  // of the grid
  uint32_t threads = 1;                 // of a block
  uint32_t shared_bytes = 0;            // of a block, in addition to the kernel's own
  uint32_t cluster = 1;                 // thread blocks of a cluster
  // The kernel may start before the stream's previous one has ended. It waits for that itself.
  bool early = false;
};

// On a kernel of a family. A family's launch_params.h calls use(launch, make) for each launch of a
// planned call, where make() makes the kernel's parameters.
template <class Family>
struct Launch {
  int32_t kernel;  // its number: see kernels.h
  LaunchShape shape;
};

}  // namespace fastnorm::cuda
