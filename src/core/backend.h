// The line between the library and its backends: what a backend offers, and what one of its devices
// does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/error.h"
#include "core/mla_decode_desc.h"
#include "core/mla_decode_plan.h"
#include "core/norm_backward_desc.h"
#include "core/norm_backward_plan.h"
#include "core/norm_desc.h"
#include "core/norm_heads_backward_plan.h"
#include "core/norm_heads_desc.h"
#include "core/norm_heads_plan.h"
#include "core/norm_plan.h"
#include "core/norm_stages.h"
#include "core/peer_link.h"
#include "core/peer_plan.h"
#include "fastnorm/context.h"

namespace fastnorm {

// A described and planned call. plan->entry is not null: calls without rows do not get here.
struct NormCall {
  const NormDesc* desc;
  const NormPlan* plan;
};

// What several calls launch together.
struct GridCount {
  int32_t launches;  // kernels
  uint64_t blocks;   // of the grids; CPU: an upper limit of threads
};

// One device of a backend, owned by a context. Functions are thread-safe.
class Device {
 public:
  explicit Device(const DeviceFacts& device_facts) : facts(device_facts) {}
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // The kernels that run on this device, sorted by packed(). Devices of one architecture have the
  // same table.
  virtual std::span<const NormEntry> norm_table() const = 0;
  // The line of data that describes an entry of the table; "" if there is none.
  virtual const char* variant_text(const NormEntry&) const { return ""; }
  virtual fastnorm_status prepare_norm(std::span<const NormCall> calls, Error& error) = 0;
  virtual fastnorm_status run_norm(std::span<const NormCall> calls, void* workspace, void* stream,
                                   Error& error) = 0;
  // What run_norm() starts.
  virtual GridCount grids(std::span<const NormCall> calls) const {
    GridCount count = {static_cast<int32_t>(calls.size()), 0};
    for (const NormCall& call : calls) count.blocks += call.plan->blocks;
    return count;
  }

  // The calls have work and were planned for this device.
  virtual fastnorm_status prepare_mla_decode(const MlaDecodeDesc&, const MlaDecodePlan&,
                                             Error& error) {
    return no_mla_decode(error);
  }
  virtual fastnorm_status run_mla_decode(const MlaDecodeDesc&, const MlaDecodePlan&, void*, void*,
                                         Error& error) {
    return no_mla_decode(error);
  }

  // The backward kernels that run on this device, as norm_table().
  virtual std::span<const NormBackwardEntry> norm_backward_table() const { return {}; }
  // The parts of backward calls launch something and were planned for this device. `workspace` is
  // that of the part.
  virtual fastnorm_status prepare_norm_backward(const NormBackwardDesc&, const NormBackwardPlan&,
                                                Error& error) {
    return no_norm_backward(error);
  }
  // Checks that need a part's values, before the call writes anything.
  virtual fastnorm_status check_norm_backward_values(const NormBackwardDesc&, Error&) {
    return FASTNORM_OK;
  }
  virtual fastnorm_status run_norm_backward(const NormBackwardDesc&, const NormBackwardPlan&, void*,
                                            void*, Error& error) {
    return no_norm_backward(error);
  }
  // The norm_heads kernels that run on this device, as norm_table().
  virtual std::span<const NormHeadsEntry> norm_heads_table() const { return {}; }
  // The calls have work and were planned for this device.
  virtual fastnorm_status prepare_norm_heads(const NormHeadsDesc&, const NormHeadsPlan&,
                                             Error& error) {
    return no_norm_heads(error);
  }
  virtual fastnorm_status run_norm_heads(const NormHeadsDesc&, const NormHeadsPlan&, void*,
                                         Error& error) {
    return no_norm_heads(error);
  }

  // The norm_heads_backward kernels that run on this device, as norm_table(); and calls of them
  // that launch something and were planned for this device.
  virtual std::span<const NormHeadsBackwardEntry> norm_heads_backward_table() const { return {}; }
  virtual fastnorm_status prepare_norm_heads_backward(const HeadsGradients&,
                                                      const NormHeadsBackwardPlan&, Error& error) {
    return no_norm_heads_backward(error);
  }
  virtual fastnorm_status run_norm_heads_backward(const HeadsGradients&,
                                                  const NormHeadsBackwardPlan&, void* /*workspace*/,
                                                  void* /*stream*/, Error& error) {
    return no_norm_heads_backward(error);
  }

  // The kernels of peers, as norm_table(). A CPU has none: it exchanges, and runs the norm's own.
  virtual std::span<const PeerEntry> peer_table() const { return {}; }
  // Whether peers of this device can be created.
  virtual fastnorm_status check_peers(Error& error) const {
    return error.set(FASTNORM_ERROR_UNSUPPORTED,
                     "this build has no peers for the device; nearest: a CPU context, or an "
                     "all-reduce of the caller's and fastnorm_norm");
  }
  // One rank's end. `buffers`: one for each of desc.ranks ranks, or null to allocate its own.
  virtual fastnorm_status create_peer(const PeerDesc&, void* const* /*buffers*/,
                                      std::unique_ptr<PeerLink>*, Error& error) {
    return check_peers(error);
  }
  // A dry run touches no memory of the caller.
  virtual bool is_dry_run() const { return false; }

  const DeviceFacts facts;

 private:
  static fastnorm_status no_norm_backward(Error& error) {
    return error.set(FASTNORM_ERROR_UNSUPPORTED,
                     "this build has no norm_backward for the device; nearest: the CPU");
  }
  static fastnorm_status no_norm_heads(Error& error) {
    return error.set(FASTNORM_ERROR_UNSUPPORTED,
                     "this build has no norm_heads for the device; nearest: the CPU");
  }
  static fastnorm_status no_norm_heads_backward(Error& error) {
    return error.set(FASTNORM_ERROR_UNSUPPORTED,
                     "this build has no norm_heads_backward for the device; nearest: the CPU");
  }
  static fastnorm_status no_mla_decode(Error& error) {
    return error.set(FASTNORM_ERROR_UNSUPPORTED,
                     "this build has no mla_decode for the device; nearest: the CPU");
  }
};

// The kernels of one architecture or instruction set that this build contains.
struct KernelSet {
  const char* arch;  // "sm_90", "avx512"
  std::span<const NormEntry> norm;
  std::span<const char* const> mla_decode = {};  // names
  std::span<const char* const> norm_backward = {};
  std::span<const char* const> norm_heads = {};  // names
  std::span<const char* const> norm_heads_backward = {};
  std::span<const NormEntry> norm_stages = {};  // of the norm family
  std::span<const char* const> peer = {};       // names
};

struct Backend {
  int32_t (*device_count)();
  fastnorm_status (*describe)(int32_t device_id, fastnorm_device_info* info, Error& error);
  // options has every field; unknown ones are already refused.
  fastnorm_status (*create)(int32_t device_id, const fastnorm_context_options& options,
                            std::unique_ptr<Device>* device, Error& error);
  std::span<const KernelSet> (*kernel_sets)();
  const char* (*build_info)();  // "key: value" lines, static
};

const Backend& cpu_backend();
const Backend& cuda_backend();  // also in stubs.cpp, for builds without CUDA

}  // namespace fastnorm
