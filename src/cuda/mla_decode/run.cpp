// MLA decode on a CUDA device.
#include "core/check.h"
#include "cuda/device.h"
#include "cuda/mla_decode/launch.h"

namespace fastnorm::cuda {

fastnorm_status CudaDevice::prepare_mla_decode(const MlaDecodeDesc& desc, const MlaDecodePlan&,
                                               Error& error) {
  return with_device(error, [&] { return load_mla_decode_once(desc, error); });
}

fastnorm_status CudaDevice::run_mla_decode(const MlaDecodeDesc& desc, const MlaDecodePlan& plan,
                                           void* workspace, void* stream, Error& error) {
  return with_device(error, [&] {
    FASTNORM_TRY(load_mla_decode_once(desc, error));
    return launch_mla_decode(desc, plan, facts.multiprocessors, driver_.encode_tiled, workspace,
                             static_cast<cudaStream_t>(stream), error);
  });
}

fastnorm_status CudaDevice::load_mla_decode_once(const MlaDecodeDesc& desc, Error& error) {
  std::atomic<bool>& loaded =
      mla_decode_loaded_[desc.dtype == Dtype::kF16][desc.profile_events != 0];
  if (loaded.load(std::memory_order_relaxed)) return FASTNORM_OK;
  FASTNORM_TRY(load_mla_decode(desc, error));
  loaded.store(true, std::memory_order_relaxed);
  return FASTNORM_OK;
}

}  // namespace fastnorm::cuda
