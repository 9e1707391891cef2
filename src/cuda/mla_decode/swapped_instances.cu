// The kernels of one dtype for few query rows, by the rows of a tile.
#include "cuda/mla_decode/kernels.h"
#include "cuda/mla_decode/swapped_kernel.cuh"

namespace fastnorm::cuda {

template <>
const void* mla_decode_swapped_kernel<Dtype::FASTNORM_DTYPE>(int32_t rows) {
  return rows == 16 ? reinterpret_cast<const void*>(
                          mla::mla_decode_swapped_kernel<Dtype::FASTNORM_DTYPE, 16>)
                    : reinterpret_cast<const void*>(
                          mla::mla_decode_swapped_kernel<Dtype::FASTNORM_DTYPE, 32>);
}

}  // namespace fastnorm::cuda
