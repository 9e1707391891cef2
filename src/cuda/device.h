// One CUDA device: the facts read once, its kernels' addresses, and the primary context.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>

#include "core/backend.h"
#include "core/check.h"
#include "cuda/norm/kernels.h"
#include "cuda/norm/launch_params.h"
#include "cuda/norm/table.h"
#include "cuda/norm_backward/kernels.h"
#include "cuda/norm_backward/table.h"
#include "cuda/norm_heads/kernels.h"
#include "cuda/norm_heads/table.h"
#include "cuda/norm_heads_backward/kernels.h"
#include "cuda/norm_heads_backward/table.h"
#include "cuda/norm_stages/kernels.h"
#include "cuda/norm_stages/table.h"
#include "cuda/peer/kernels.h"
#include "cuda/peer/table.h"

// Leaves the function with a device error if `expression` fails.
#define FASTNORM_CUDA_TRY(expression)                                                              \
  do {                                                                                             \
    if (const cudaError_t cuda_try = (expression); __builtin_expect(cuda_try != cudaSuccess, 0)) { \
      return ::fastnorm::cuda::device_error(#expression, cuda_try, error);                         \
    }                                                                                              \
  } while (0)

namespace fastnorm::cuda {

// Sets the text and the code of a failed CUDA call, and clears errors that are not sticky.
fastnorm_status device_error(const char* expression, cudaError_t code, Error& error);

// The kernels of one architecture in this build.
struct KernelTable {
  const ArchSpec* arch;
  KernelParts parts;
  NormBackwardKernels backward;
  NormHeadsKernels heads;
  NormHeadsBackwardKernels heads_backward;
  NormStagesKernels stages;
  PeerKernels peers;

  NormKernel at(int32_t index) const;  // in the order of norm_table()
  NormPairKernel pair_at(int32_t index, GridForm form) const;
};

// nullptr if this build has no kernels for the architecture.
const KernelTable* kernel_table(const ArchSpec& arch);

// Functions of the driver that the runtime does not offer. They are found through the runtime.
struct Driver {
  int (*get_current)(void** context) = nullptr;
  int (*set_current)(void* context) = nullptr;
  int (*get_device)(int* device) = nullptr;
  void* encode_tiled = nullptr;  // cuTensorMapEncodeTiled
};

class CudaDevice final : public Device {
 public:
  CudaDevice(const DeviceFacts& facts, const KernelTable& kernels, const Driver& driver,
             void* primary)
      : Device(facts),
        kernels_(kernels),
        driver_(driver),
        primary_(primary),
        allowed_large_(std::make_unique<std::atomic<bool>[]>(cuda::norm_table(*facts.arch).size())),
        allowed_backward_(
            std::make_unique<std::atomic<bool>[]>(cuda::norm_backward_table(*facts.arch).size())),
        allowed_heads_backward_(std::make_unique<std::atomic<bool>[]>(
            cuda::norm_heads_backward_table(*facts.arch).size())) {}

  std::span<const NormEntry> norm_table() const override { return cuda::norm_table(*facts.arch); }
  const char* variant_text(const NormEntry& entry) const override {
    return cuda::variant_text(entry);
  }
  fastnorm_status prepare_norm(std::span<const NormCall> calls, Error& error) override;
  fastnorm_status run_norm(std::span<const NormCall> calls, void* workspace, void* stream,
                           Error& error) override;
  GridCount grids(std::span<const NormCall> calls) const override { return count_grids(calls); }
  std::span<const NormBackwardEntry> norm_backward_table() const override;
  fastnorm_status prepare_norm_backward(const NormBackwardDesc& desc, const NormBackwardPlan& plan,
                                        Error& error) override;
  fastnorm_status run_norm_backward(const NormBackwardDesc& desc, const NormBackwardPlan& plan,
                                    void* workspace, void* stream, Error& error) override;
  std::span<const NormHeadsEntry> norm_heads_table() const override;
  fastnorm_status prepare_norm_heads(const NormHeadsDesc& desc, const NormHeadsPlan& plan,
                                     Error& error) override;
  fastnorm_status run_norm_heads(const NormHeadsDesc& desc, const NormHeadsPlan& plan, void* stream,
                                 Error& error) override;
  std::span<const NormHeadsBackwardEntry> norm_heads_backward_table() const override;
  fastnorm_status prepare_norm_heads_backward(const HeadsGradients& call,
                                              const NormHeadsBackwardPlan& plan,
                                              Error& error) override;
  fastnorm_status run_norm_heads_backward(const HeadsGradients& call,
                                          const NormHeadsBackwardPlan& plan, void* workspace,
                                          void* stream, Error& error) override;
  std::span<const PeerEntry> peer_table() const override { return cuda::peer_table(); }
  fastnorm_status check_peers(Error&) const override { return FASTNORM_OK; }
  fastnorm_status create_peer(const PeerDesc& desc, void* const* buffers,
                              std::unique_ptr<PeerLink>* link, Error& error) override;
  const PeerKernels& peer_kernels() const { return kernels_.peers; }
#ifdef FASTNORM_HAS_SM90
  fastnorm_status prepare_mla_decode(const MlaDecodeDesc& desc, const MlaDecodePlan& plan,
                                     Error& error) override;
  fastnorm_status run_mla_decode(const MlaDecodeDesc& desc, const MlaDecodePlan& plan,
                                 void* workspace, void* stream, Error& error) override;
#endif
  // Runs body() with this device current, then restores the device that was current, also where
  // body() throws.
  template <typename Body>
  fastnorm_status with_device(Error& error, Body body);

 private:
  // Allows more shared memory than is portable, if the kernel needs it. Once per kernel: the
  // runtime remembers it.
  fastnorm_status allow_large(const NormPlan& plan, const void* kernel, Error& error);
  fastnorm_status allow_backward(const NormBackwardStep& step, Error& error);
  fastnorm_status allow_heads_backward(const HeadsBackwardStep& step, Error& error);
  fastnorm_status load_mla_decode_once(const MlaDecodeDesc& desc, Error& error);
  // On the current device.
  fastnorm_status prepare_stages(const NormCall& call, Error& error);
  fastnorm_status run_stages(const NormCall& call, cudaStream_t stream, Error& error);
  // One launch on the current device.
  fastnorm_status run_together(std::span<const NormCall> calls, cudaStream_t stream, Error& error);

  const KernelTable& kernels_;
  const Driver driver_;
  void* const primary_;                                       // the device's primary CUDA context
  const std::unique_ptr<std::atomic<bool>[]> allowed_large_;  // per kernel: already allowed
  const std::unique_ptr<std::atomic<bool>[]> allowed_backward_, allowed_heads_backward_;
  std::atomic<bool> mla_decode_loaded_[2][2] = {};  // by f16 and profile: whether the kernels are
};

template <typename Body>
fastnorm_status CudaDevice::with_device(Error& error, Body body) {
  void* before = nullptr;
  driver_.get_current(&before);
  if (__builtin_expect(before == primary_, 1)) return body();
  if (before != nullptr) {
    int id = -1;
    // A context other than the primary one has its own streams. Work queued here would not be
    // ordered with them.
    FASTNORM_REQUIRE(driver_.get_device(&id) != 0 || id != facts.device_id, FASTNORM_ERROR_DEVICE,
                     "the thread's current CUDA context is not the primary context of device %d; "
                     "required: the primary one, or "
                     "none",
                     facts.device_id);
  }
  FASTNORM_REQUIRE(driver_.set_current(primary_) == 0, FASTNORM_ERROR_DEVICE,
                   "the primary CUDA context of device %d cannot be made current; required: that "
                   "it was not reset",
                   facts.device_id);
  const struct Restore {
    ~Restore() { driver.set_current(before); }
    const Driver& driver;
    void* const before;
  } restore{driver_, before};
  return body();
}

}  // namespace fastnorm::cuda
