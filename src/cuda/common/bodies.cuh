// Whether kernels have their bodies here. nvcc compiles their files for the host, too, which needs
// the kernels' names alone.
#pragma once

namespace fastnorm::cuda {

#if defined(__CUDACC__) && !defined(__CUDA_ARCH__)
inline constexpr bool kHasBodies = false;
#else
inline constexpr bool kHasBodies = true;
#endif

}  // namespace fastnorm::cuda
