// Programmatic dependent launch: a kernel that starts while the stream's previous one still runs,
// and one that lets the next do so. sm_90 and later; before, kernels follow each other and there is
// nothing to do.
#pragma once

namespace fastnorm::ptx {

// Returns when the previous kernel has ended and what it wrote can be read. At once where this
// kernel did not start early.
__device__ __forceinline__ void grid_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The same where `wanted`, without a branch.
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

// The next kernel may start as soon as every block has said so or ended.
__device__ __forceinline__ void grid_trigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace fastnorm::ptx
