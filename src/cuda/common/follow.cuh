// How a kernel follows the stream's previous one, if the call asks for programmatic dependent
// launch.
#pragma once

#include "cuda/common/ptx/grid.cuh"

namespace fastnorm::cuda {

// By all threads, ahead of any access to global memory. The trigger comes behind the wait, so that
// what a kernel of the caller finds before its own wait is what all earlier calls have written.
__device__ __forceinline__ void follow_stream(bool triggers) {
  ptx::grid_wait();
  if (triggers) ptx::grid_trigger();
}

}  // namespace fastnorm::cuda
