// Peers on a CUDA device: buffers that other ranks reach, directly in one process and by CUDA IPC
// between processes, and the launches of calls.
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/common/check.h"
#include "core/common/pdl.h"
#include "cuda/arch.h"
#include "cuda/device.h"
#include "cuda/peer/dry_link.h"
#include "cuda/peer/launch_params.h"

namespace fastnorm::cuda {
namespace {

// A rank's buffer. Ranks of this process that were connected hold it, too. It is freed where some
// device is current.
class Allocation {
 public:
  explicit Allocation(int32_t device) : device_(device) {}
  ~Allocation() {
    if (data_ != nullptr) cudaFree(data_);
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  // Once, on the current device.
  cudaError_t take(uint64_t bytes) { return cudaMalloc(&data_, bytes); }
  void* data() const { return data_; }
  int32_t device() const { return device_; }

 private:
  void* data_ = nullptr;
  const int32_t device_;
};

// The buffers of this process, by number.
class Registry {
 public:
  static Registry& instance() {
    static Registry registry;
    return registry;
  }

  uint32_t add(const std::shared_ptr<Allocation>& buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.emplace(++last_, buffer);
    return last_;
  }
  void remove(uint32_t number) {
    const std::lock_guard lock(mutex_);
    buffers_.erase(number);
  }
  std::shared_ptr<Allocation> find(uint32_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(number);
    return found == buffers_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<uint32_t, std::weak_ptr<Allocation>> buffers_;
  uint32_t last_ = 0;
};

// Lets the current device reach what `owner` has.
fastnorm_status reach_device(int32_t device, int32_t owner, Error& error) {
  if (device == owner) return FASTNORM_OK;
  int can = 0;
  FASTNORM_CUDA_TRY(cudaDeviceCanAccessPeer(&can, device, owner));
  FASTNORM_REQUIRE(can != 0, FASTNORM_ERROR_UNSUPPORTED,
                   "device %d cannot reach the memory of device %d; nearest: devices with peer "
                   "access, or an all-reduce of the caller's and fastnorm_norm",
                   device, owner);
  const cudaError_t code = cudaDeviceEnablePeerAccess(owner, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return FASTNORM_OK;
  }
  FASTNORM_CUDA_TRY(code);
  return FASTNORM_OK;
}

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(PeerBlob::place));
constexpr uint64_t kIpcGranule = 2 << 20;  // whole blocks: a handle shares all of its block

class CudaPeerLink final : public PeerLink {
 public:
  CudaPeerLink(const PeerDesc& options, CudaDevice& device) : PeerLink(options), device_(device) {}

  ~CudaPeerLink() override {
    Error error;
    device_.with_device(error, [&] {
      if (number_ != 0) Registry::instance().remove(number_);
      // A kernel may still write to what is mapped.
      if (!opened_.empty()) cudaDeviceSynchronize();
      for (void* opened : opened_) cudaIpcCloseMemHandle(opened);
      for (std::shared_ptr<Allocation>& buffer : held_) buffer.reset();
      if (control_ != nullptr) cudaFree(control_);
      if (report_ != nullptr) cudaFreeHost(report_);
      if (stream_ != nullptr) cudaStreamDestroy(stream_);
      return FASTNORM_OK;
    });
  }

  // On the current device.
  fastnorm_status create(void* const* buffers, Error& error) {
    FASTNORM_TRY(load_kernels(error));
    FASTNORM_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    FASTNORM_CUDA_TRY(
        cudaHostAlloc(reinterpret_cast<void**>(&report_), sizeof *report_, cudaHostAllocMapped));
    *report_ = 0;
    FASTNORM_CUDA_TRY(cudaMalloc(reinterpret_cast<void**>(&control_), sizeof *control_));
    cudaDeviceProp properties;
    FASTNORM_CUDA_TRY(cudaGetDeviceProperties(&properties, device_.facts.device_id));
    std::memcpy(&gpu_, &properties.uuid, sizeof gpu_);
    void* bases[kMaxRanks] = {};
    if (buffers != nullptr) {
      PeerGpu gpus[kMaxRanks];
      for (int32_t r = 0; r < desc.ranks; ++r) {
        bases[r] = buffers[r];
        cudaPointerAttributes attributes;
        FASTNORM_CUDA_TRY(cudaPointerGetAttributes(&attributes, buffers[r]));
        FASTNORM_REQUIRE(attributes.type == cudaMemoryTypeDevice, FASTNORM_ERROR_ARGUMENT,
                         "buffers[%d] is %p, which is no memory of a CUDA device; required: device "
                         "memory",
                         r, buffers[r]);
        FASTNORM_TRY(reach_device(device_.facts.device_id, attributes.device, error));
        gpus[r].number = static_cast<uint32_t>(attributes.device);
        FASTNORM_CUDA_TRY(cudaDeviceGetAttribute(
            &gpus[r].multiprocessors, cudaDevAttrMultiProcessorCount, attributes.device));
      }
      room_ = peer_room(gpus, desc.ranks);
    } else {
      const uint64_t bytes = (peer_layout(desc).bytes() + kIpcGranule - 1) / kIpcGranule;
      const auto own = std::make_shared<Allocation>(device_.facts.device_id);
      FASTNORM_CUDA_TRY(own->take(bytes * kIpcGranule));
      held_[desc.rank] = own;
      number_ = Registry::instance().add(own);
      bases[desc.rank] = own->data();
    }
    FASTNORM_TRY(set_exchange(bases, error));
    FASTNORM_TRY(clear(error));
    connected_ = buffers != nullptr;
    return FASTNORM_OK;
  }

  fastnorm_status export_blob(PeerBlob* blob, Error& error) override {
    FASTNORM_TRY(require_own_buffer(number_ != 0, error));
    *blob = make_peer_blob(desc, FASTNORM_DEVICE_CUDA);
    blob->buffer = number_;
    blob->gpu = gpu_;
    blob->multiprocessors = static_cast<int16_t>(device_.facts.multiprocessors);
    FASTNORM_TRY(device_.with_device(error, [&] {
      cudaIpcMemHandle_t handle;
      // Without CUDA IPC the place stays 0: ranks of this process need none.
      if (cudaIpcGetMemHandle(&handle, held_[desc.rank]->data()) == cudaSuccess) {
        std::memcpy(blob->place, &handle, sizeof handle);
      } else {
        cudaGetLastError();
      }
      return FASTNORM_OK;
    }));
    seal_peer_blob(blob);
    return FASTNORM_OK;
  }

  fastnorm_status connect(const PeerBlob* blobs, Error& error) override {
    FASTNORM_TRY(require_unconnected(connected_.load(), error));
    return device_.with_device(error, [&] {
      std::shared_ptr<Allocation> found[kMaxRanks];
      std::vector<void*> opened;
      opened.reserve(kMaxRanks);  // what was opened is closed in any case
      void* bases[kMaxRanks] = {};
      fastnorm_status status = FASTNORM_OK;
      for (int32_t r = 0; r < desc.ranks && status == FASTNORM_OK; ++r)
        status = find(blobs[r], r, &found[r], &opened, &bases[r], error);
      if (status == FASTNORM_OK) status = set_exchange(bases, error);
      if (status != FASTNORM_OK) {
        for (void* base : opened) cudaIpcCloseMemHandle(base);
        return status;
      }
      for (int32_t r = 0; r < desc.ranks; ++r) held_[r] = std::move(found[r]);
      opened_ = std::move(opened);
      PeerGpu gpus[kMaxRanks];
      for (int32_t r = 0; r < desc.ranks; ++r) gpus[r] = {blobs[r].gpu, blobs[r].multiprocessors};
      room_ = peer_room(gpus, desc.ranks);
      connected_ = true;
      return FASTNORM_OK;
    });
  }

  fastnorm_status ready(Error& error) const override {
    FASTNORM_TRY(require_connected(connected_.load(), error));
    const uint32_t stopped = this->stopped();
    FASTNORM_REQUIRE(
        stopped == 0, FASTNORM_ERROR_DEVICE,
        "peer was stopped in a call before, as rank %d %s; required: "
        "fastnorm_peer_reset on all ranks",
        rank_of(stopped),
        error_of(stopped) == FASTNORM_PEER_ERROR_MISSING ? "was missing" : "made another call");
    return FASTNORM_OK;
  }

  fastnorm_status sum(const PeerSum& call, void* stream, Error& error) override {
    FASTNORM_TRY(ready(error));
    return launch(*call.plan, make_peer_sum_params(exchange_, call), waits_early(call.norm->flags),
                  stream, error);
  }
  fastnorm_status norm(const PeerNorm& call, void* stream, Error& error) override {
    FASTNORM_TRY(ready(error));
    PeerNormParams params = make_peer_norm_params(exchange_, call);
    if (!room_.alone) params.norm.bits = params.norm.bits_again &= ~kTrigger;
    return launch(*call.plan, params, waits_early(call.norm->flags), stream, error);
  }
  fastnorm_status statistics(const PeerStatistics& call, void* stream, Error& error) override {
    FASTNORM_TRY(ready(error));
    return launch(*call.plan, make_peer_statistics_params(exchange_, call), waits_early(call.pdl),
                  stream, error);
  }

  fastnorm_status sharded(const PeerShardedNorm& call, void* stream, Error& error) override {
    FASTNORM_TRY(ready(error));
    PeerShardedParams params = make_peer_sharded_params(exchange_, call);
    if (!room_.alone) params.bits &= ~kTrigger;
    return launch(*call.plan, params, waits_early(call.flags), stream, error);
  }

  PeerRoom room() const override { return connected_.load() ? room_ : PeerRoom{}; }

  fastnorm_status state(fastnorm_peer_state* state, Error& error) const override {
    const uint32_t stopped = this->stopped();
    state->error = error_of(stopped);
    state->rank = rank_of(stopped);
    state->connected = connected_.load() ? 1 : 0;
    return device_.with_device(error, [&] {
      const std::lock_guard lock(mutex_);
      uint32_t calls = 0;
      FASTNORM_CUDA_TRY(
          cudaMemcpyAsync(&calls, &control_->calls, sizeof calls, cudaMemcpyDeviceToHost, stream_));
      FASTNORM_CUDA_TRY(cudaStreamSynchronize(stream_));
      state->calls = calls;
      return FASTNORM_OK;
    });
  }

  fastnorm_status reset(Error& error) override {
    return device_.with_device(error, [&] { return clear(error); });
  }

 private:
  static fastnorm_peer_error error_of(uint32_t stopped) {
    return static_cast<fastnorm_peer_error>(stopped & 0xff);
  }
  static int32_t rank_of(uint32_t stopped) { return static_cast<int32_t>(stopped >> 8) - 1; }
  // Kernels write it.
  uint32_t stopped() const { return std::atomic_ref(*report_).load(std::memory_order_relaxed); }

  bool waits_early(uint32_t flags) const {
    return (flags & kPdlWait) != 0 && device_.facts.arch->launches_early();
  }

  // All that calls may run: a kernel cannot be loaded while another one waits for this rank.
  fastnorm_status load_kernels(Error& error) {
    const std::span<const PeerEntry> table = device_.table<PeerEntry>();
    for (size_t i = 0; i < table.size(); ++i) {
      const PeerVariant& v = table[i].variant;
      // peer_sharded_norm's x is of any dtype.
      if (v.dtype != desc.dtype && v.form < PeerForm::kStatistics) continue;
      FASTNORM_TRY(device_.load(Launch<PeerFamily>{static_cast<int32_t>(i), {}}, error));
    }
    return FASTNORM_OK;
  }

  // Where a blob's buffer is for this rank.
  fastnorm_status find(const PeerBlob& blob, int32_t r, std::shared_ptr<Allocation>* found,
                       std::vector<void*>* opened, void** base, Error& error) {
    constexpr uint8_t kNone[sizeof blob.place] = {};
    if (blob.process == peer_process()) {
      *found = Registry::instance().find(blob.buffer);
      FASTNORM_REQUIRE(*found != nullptr, FASTNORM_ERROR_ARGUMENT,
                       "blobs[%d] is of a peer that was destroyed; required: a peer that exists",
                       r);
      FASTNORM_REQUIRE(r != desc.rank || blob.buffer == number_, FASTNORM_ERROR_ARGUMENT,
                       "blobs[%d] is of another peer of rank %d; required: this peer's own blob", r,
                       r);
      *base = (*found)->data();
      return reach_device(device_.facts.device_id, (*found)->device(), error);
    }
    FASTNORM_REQUIRE(r != desc.rank, FASTNORM_ERROR_ARGUMENT,
                     "blobs[%d] is of another process; required: this peer's own blob", r);
    FASTNORM_REQUIRE(std::memcmp(blob.place, kNone, sizeof kNone) != 0, FASTNORM_ERROR_UNSUPPORTED,
                     "blobs[%d] is of another process, where CUDA IPC does not work; nearest: "
                     "ranks as threads of one process",
                     r);
    cudaIpcMemHandle_t handle;
    std::memcpy(&handle, blob.place, sizeof handle);
    const cudaError_t code = cudaIpcOpenMemHandle(base, handle, cudaIpcMemLazyEnablePeerAccess);
    if (code != cudaSuccess) {
      cudaGetLastError();
      error.set(FASTNORM_ERROR_UNSUPPORTED,
                "blobs[%d] is of another process, and device %d cannot open its memory by CUDA "
                "IPC: %s (%d); nearest: GPUs of one host with peer access, a peer that exists, or "
                "ranks as threads of one process",
                r, device_.facts.device_id, cudaGetErrorString(code), static_cast<int>(code));
      error.device_error = code;
      return error.status;
    }
    opened->push_back(*base);
    return FASTNORM_OK;
  }

  fastnorm_status set_exchange(void* const* bases, Error& error) {
    void* report = nullptr;
    FASTNORM_CUDA_TRY(cudaHostGetDevicePointer(&report, report_, 0));
    exchange_ = make_peer_exchange(desc, bases, control_, static_cast<uint32_t*>(report));
    return FASTNORM_OK;
  }

  // This rank's buffer and counters as they were at first.
  fastnorm_status clear(Error& error) {
    const std::lock_guard lock(mutex_);
    FASTNORM_CUDA_TRY(
        cudaMemsetAsync(exchange_.buffer[desc.rank], 0xff, peer_layout(desc).bytes(), stream_));
    FASTNORM_CUDA_TRY(cudaMemsetAsync(control_, 0, sizeof *control_, stream_));
    FASTNORM_CUDA_TRY(cudaStreamSynchronize(stream_));
    std::atomic_ref(*report_).store(0);
    return FASTNORM_OK;
  }

  template <class Params>
  fastnorm_status launch(const PeerPlan& plan, Params params, bool early, void* stream,
                         Error& error) {
    const PeerGrid grid = peer_grid(plan);
    const auto cluster = static_cast<uint32_t>(plan.entry->variant.blocks);
    const Launch<PeerFamily> launch = {plan.index,
                                       {grid.blocks, 1, grid.threads, 0, cluster, early}};
    return device_.with_device(error, [&] { return device_.start(launch, params, stream, error); });
  }

  CudaDevice& device_;
  std::shared_ptr<Allocation> held_[kMaxRanks];
  std::vector<void*> opened_;  // of other processes
  uint32_t number_ = 0;        // of the own buffer in the registry
  uint32_t gpu_ = 0;           // as in blobs
  PeerRoom room_;              // before connected_
  std::atomic<bool> connected_ = false;
  PeerControl* control_ = nullptr;
  uint32_t* report_ = nullptr;     // PeerControl::stopped in host memory
  cudaStream_t stream_ = nullptr;  // of this rank's own: calls may wait in others
  mutable std::mutex mutex_;       // of stream_
  PeerExchange exchange_ = {};
};

}  // namespace

fastnorm_status CudaDevice::create_peer(const PeerDesc& desc, void* const* buffers,
                                        std::unique_ptr<PeerLink>* link, Error& error) {
  auto made = std::make_unique<CudaPeerLink>(desc, *this);
  FASTNORM_TRY(with_device(error, [&] { return made->create(buffers, error); }));
  *link = std::move(made);
  return FASTNORM_OK;
}

}  // namespace fastnorm::cuda
