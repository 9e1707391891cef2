// The kernel of one dtype for few query rows.
#include "cuda/mla_decode/kernels.h"
#include "cuda/mla_decode/swapped_kernel.cuh"

namespace fastnorm::cuda {

template <>
const void* mla_decode_swapped_kernel<Dtype::FASTNORM_DTYPE>() {
  return reinterpret_cast<const void*>(mla::mla_decode_swapped_kernel<Dtype::FASTNORM_DTYPE>);
}

}  // namespace fastnorm::cuda
