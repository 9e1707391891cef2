// MLA decode on a CUDA device.
#include "core/common/check.h"
#include "cuda/device.h"
#include "cuda/mla_decode/launch.h"

namespace fastnorm::cuda {

fastnorm_status CudaDevice::run_mla_decode(const MlaDecodeCall& call, void* workspace, void* stream,
                                           Error& error) {
  FASTNORM_TRY(prepare_mla_decode(call, error));
  return launch_mla_decode(*call.desc, *call.plan, facts.multiprocessors, driver_.encode_tiled,
                           workspace, static_cast<cudaStream_t>(stream), error);
}

// Once for each attention kernel.
fastnorm_status CudaDevice::prepare_mla_decode(const MlaDecodeCall& call, Error& error) {
  const MlaDecodeDesc& desc = *call.desc;
  const int kernel = desc.gathers() ? 2 + static_cast<int>(desc.format) : desc.profile_events != 0;
  std::atomic<bool>& loaded = mla_decode_loaded_[desc.dtype == Dtype::kF16][kernel];
  if (loaded.load(std::memory_order_relaxed)) return FASTNORM_OK;
  FASTNORM_TRY(load_mla_decode(desc, error));
  loaded.store(true, std::memory_order_relaxed);
  return FASTNORM_OK;
}

}  // namespace fastnorm::cuda
