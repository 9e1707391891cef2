// The attention kernels of one dtype, with and without a profile.
#include "cuda/mla_decode/kernel.cuh"
#include "cuda/mla_decode/kernels.h"

namespace fastnorm::cuda {

template <>
const void* mla_decode_kernel<Dtype::FASTNORM_DTYPE>(bool profiles) {
  return profiles
             ? reinterpret_cast<const void*>(mla::mla_decode_kernel<Dtype::FASTNORM_DTYPE, true>)
             : reinterpret_cast<const void*>(mla::mla_decode_kernel<Dtype::FASTNORM_DTYPE, false>);
}

}  // namespace fastnorm::cuda
