// One rank's connection with the others, as a backend makes it.
#pragma once

#include "core/error.h"
#include "core/peer_blob.h"
#include "core/peer_desc.h"

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
  virtual fastnorm_status sum(const PeerSum& call, Error& error) = 0;
  virtual fastnorm_status statistics(const PeerStatistics& call, Error& error) = 0;
  // The same questions without a call.
  virtual fastnorm_status ready(Error& error) const = 0;

  // All fields but struct_size.
  virtual fastnorm_peer_state state() const = 0;
  virtual fastnorm_status reset(Error& error) = 0;

  const PeerDesc desc;
};

}  // namespace fastnorm
