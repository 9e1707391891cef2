// Programmatic dependent launch: a kernel starts while the previous one of its stream still runs,
// or lets the next one do so. On sm_90 and later. On earlier architectures kernels run one after
// the other, and these functions do nothing.
#pragma once

namespace fastnorm::ptx {

// Returns when the previous kernel has ended and its writes are visible. Returns at once if this
// kernel did not start early.
__device__ __forceinline__ void grid_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Waits if `wanted`, without a branch.
__device__ __forceinline__ void grid_wait_if(bool wanted) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %0, 0;\n"
      "@wanted griddepcontrol.wait;\n"
      "}" ::"r"(static_cast<unsigned>(wanted))
      : "memory");
#endif
}

// The next kernel may start once every block has called this or has ended.
__device__ __forceinline__ void grid_trigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace fastnorm::ptx
