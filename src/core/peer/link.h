// One rank's connection with the others, as a backend makes it.
#pragma once

#include "core/common/error.h"
#include "core/peer/blob.h"
#include "core/peer/desc.h"

namespace fastnorm {

class PeerLink {
 public:
  explicit PeerLink(const PeerDesc& options) : desc(options) {}
  virtual ~PeerLink() = default;
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  virtual fastnorm_status export_blob(PeerBlob* blob, Error& error) = 0;
  // desc.ranks blobs, which check_peer_blob() has passed.
  virtual fastnorm_status connect(const PeerBlob* blobs, Error& error) = 0;

  // Fails where the link is not connected, was stopped, or runs a call.
  // `stream`: the device's; a CPU has none.
  virtual fastnorm_status sum(const PeerSum& call, void* stream, Error& error) = 0;
  virtual fastnorm_status statistics(const PeerStatistics& call, void* stream, Error& error) = 0;
  // Runs a call that has a kernel in the device's peer_table().
  virtual fastnorm_status norm(const PeerNorm&, void* /*stream*/, Error& error) {
    return error.set(FASTNORM_ERROR_INTERNAL, "the device has no kernels of peer_allreduce_norm");
  }
  // Runs a call whose plan is one of plan_peer_sharded().
  virtual fastnorm_status sharded(const PeerShardedNorm&, void* /*stream*/, Error& error) {
    return error.set(FASTNORM_ERROR_INTERNAL, "the device has no kernels of peer_sharded_norm");
  }
  // Fails where a call would: the link is not connected, was stopped, or runs a call.
  virtual fastnorm_status ready(Error& error) const = 0;

  // The buffers of a connected link.
  virtual PeerRoom room() const { return {}; }

  // All fields but struct_size.
  virtual fastnorm_status state(fastnorm_peer_state* state, Error& error) const = 0;
  virtual fastnorm_status reset(Error& error) = 0;

  const PeerDesc desc;
};

}  // namespace fastnorm
