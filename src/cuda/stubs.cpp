// The CUDA backend of a build without CUDA: the same symbols, no devices. Dry runs work, because
// planning needs no CUDA.
#include "core/common/check.h"
#include "cuda/gpu_device.h"

namespace fastnorm {
namespace {

int32_t no_devices() { return 0; }

fastnorm_status no_device(Error& error) {
  return error.set(FASTNORM_ERROR_DEVICE,
                   "this build of libfastnorm has no CUDA backend; required: one configured with "
                   "-Dcuda=enabled");
}

fastnorm_status describe(int32_t, fastnorm_device_info*, Error& error) { return no_device(error); }

fastnorm_status create(int32_t device_id, const fastnorm_context_options& options,
                       std::unique_ptr<Device>* device, Error& error) {
  if ((options.flags & FASTNORM_CONTEXT_DRY_RUN) == 0) return no_device(error);
  return cuda::create_dry_device(device_id, options, device, error);
}

std::span<const KernelSet> no_kernels() { return {}; }

const char* build_info() { return "cuda: off\n"; }

}  // namespace

const Backend& cuda_backend() {
  static constexpr Backend kBackend = {no_devices, describe, create, no_kernels, build_info};
  return kBackend;
}

}  // namespace fastnorm
