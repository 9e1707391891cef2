#include "cuda/peer/dry_link.h"

#include <atomic>

#include "core/common/check.h"
#include "cuda/peer/launch_params.h"

namespace fastnorm::cuda {
namespace {

class DryPeerLink final : public PeerLink {
 public:
  DryPeerLink(const PeerDesc& options, void* const* buffers)
      : PeerLink(options), own_(buffers == nullptr), connected_(buffers != nullptr) {
    void* const none[kMaxRanks] = {};
    exchange_ = make_peer_exchange(desc, own_ ? none : buffers, nullptr, nullptr);
  }

  fastnorm_status export_blob(PeerBlob* blob, Error& error) override {
    FASTNORM_TRY(require_own_buffer(own_, error));
    *blob = make_peer_blob(desc, FASTNORM_DEVICE_CUDA);
    seal_peer_blob(blob);
    return FASTNORM_OK;
  }
  fastnorm_status connect(const PeerBlob*, Error& error) override {
    FASTNORM_TRY(require_unconnected(connected_.load(), error));
    connected_ = true;
    return FASTNORM_OK;
  }
  fastnorm_status sum(const PeerSum& call, void*, Error& error) override {
    return pretend(make_peer_sum_params(exchange_, call), error);
  }
  fastnorm_status statistics(const PeerStatistics& call, void*, Error& error) override {
    return pretend(make_peer_statistics_params(exchange_, call), error);
  }
  fastnorm_status norm(const PeerNorm& call, void*, Error& error) override {
    return pretend(make_peer_norm_params(exchange_, call), error);
  }
  fastnorm_status sharded(const PeerShardedNorm& call, void*, Error& error) override {
    return pretend(make_peer_sharded_params(exchange_, call), error);
  }
  fastnorm_status ready(Error& error) const override {
    return require_connected(connected_.load(), error);
  }
  fastnorm_status state(fastnorm_peer_state* state, Error&) const override {
    state->rank = -1;
    state->calls = calls_.load();
    state->connected = connected_.load() ? 1 : 0;
    return FASTNORM_OK;
  }
  fastnorm_status reset(Error&) override {
    calls_ = 0;
    return FASTNORM_OK;
  }

 private:
  // The work of a call counts, not its result.
  template <class Params>
  fastnorm_status pretend(const Params& params, Error& error) {
    asm volatile("" ::"m"(params));
    FASTNORM_TRY(ready(error));
    ++calls_;
    return FASTNORM_OK;
  }

  const bool own_;
  std::atomic<bool> connected_;
  std::atomic<uint64_t> calls_ = 0;
  PeerExchange exchange_;
};

}  // namespace

std::unique_ptr<PeerLink> make_dry_peer_link(const PeerDesc& desc, void* const* buffers) {
  return std::make_unique<DryPeerLink>(desc, buffers);
}

fastnorm_status require_connected(bool connected, Error& error) {
  FASTNORM_REQUIRE(connected, FASTNORM_ERROR_ARGUMENT,
                   "peer is not connected; required: fastnorm_peer_import before a call");
  return FASTNORM_OK;
}

fastnorm_status require_unconnected(bool connected, Error& error) {
  FASTNORM_REQUIRE(!connected, FASTNORM_ERROR_ARGUMENT,
                   "peer is connected already; required: one fastnorm_peer_import, and none with "
                   "fastnorm_peer_create_from_pointers");
  return FASTNORM_OK;
}

fastnorm_status require_own_buffer(bool own, Error& error) {
  FASTNORM_REQUIRE(own, FASTNORM_ERROR_ARGUMENT,
                   "peer is one of fastnorm_peer_create_from_pointers; required: one of "
                   "fastnorm_peer_create, which has blobs");
  return FASTNORM_OK;
}

}  // namespace fastnorm::cuda
