// The kernels of one dtype that gather rows, by the format of the cache.
#include "cuda/mla_decode/gather_kernel.cuh"
#include "cuda/mla_decode/kernels.h"

namespace fastnorm::cuda {
namespace {

template <MlaCacheFormat kFormat>
const void* kernel_of() {
  return reinterpret_cast<const void*>(
      mla::mla_decode_gather_kernel<Dtype::FASTNORM_DTYPE, kFormat>);
}

}  // namespace

template <>
const void* mla_decode_gather_kernel<Dtype::FASTNORM_DTYPE>(MlaCacheFormat format) {
  switch (format) {
    case MlaCacheFormat::kFp8Blocks:
      return kernel_of<MlaCacheFormat::kFp8Blocks>();
    case MlaCacheFormat::kFp8Tensor:
      return kernel_of<MlaCacheFormat::kFp8Tensor>();
    case MlaCacheFormat::kFp8Pages:
      return kernel_of<MlaCacheFormat::kFp8Pages>();
    case MlaCacheFormat::kRows:
      break;
  }
  return kernel_of<MlaCacheFormat::kRows>();
}

}  // namespace fastnorm::cuda
