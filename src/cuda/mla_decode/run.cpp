// MLA decode on a CUDA device.
#include "core/common/check.h"
#include "cuda/device.h"
#include "cuda/mla_decode/launch.h"

namespace fastnorm::cuda {

namespace {

// Of the kernels of a dtype.
int kernel_number(const MlaDecodeDesc& desc, const MlaDecodePlan& plan) {
  if (desc.gathers()) return 3 + static_cast<int>(desc.format);
  if (plan.tile_rows != kMlaTileRows) return 2;
  return desc.profile_events != 0 ? 1 : 0;
}

}  // namespace

fastnorm_status CudaDevice::run_mla_decode(const MlaDecodeCall& call, void* workspace, void* stream,
                                           Error& error) {
  FASTNORM_TRY(prepare_mla_decode(call, error));
  return launch_mla_decode(*call.desc, *call.plan, facts.multiprocessors, driver_.encode_tiled,
                           workspace, static_cast<cudaStream_t>(stream), error);
}

// Once for each attention kernel.
fastnorm_status CudaDevice::prepare_mla_decode(const MlaDecodeCall& call, Error& error) {
  const MlaDecodeDesc& desc = *call.desc;
  std::atomic<bool>& loaded =
      mla_decode_loaded_[desc.dtype == Dtype::kF16][kernel_number(desc, *call.plan)];
  if (loaded.load(std::memory_order_relaxed)) return FASTNORM_OK;
  FASTNORM_TRY(load_mla_decode(desc, *call.plan, error));
  loaded.store(true, std::memory_order_relaxed);
  return FASTNORM_OK;
}

}  // namespace fastnorm::cuda
