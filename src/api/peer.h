// What the files of peers share: the object, and what calls of it begin with.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>

#include "api/api.h"
#include "core/peer/link.h"
#include "fastnorm/peer.h"

struct fastnorm_peer {
  fastnorm_context* context;
  std::unique_ptr<fastnorm::PeerLink> link;
};

namespace fastnorm {

// What every call asks first.
inline fastnorm_status check_peer(const fastnorm_context* context, const fastnorm_peer* peer,
                                  Error& error) {
  FASTNORM_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT, "peer is NULL; required: a peer");
  FASTNORM_REQUIRE(peer->context == context, FASTNORM_ERROR_ARGUMENT,
                   "peer is of the context %p and context is %p; required: the peer's own context",
                   static_cast<const void*>(peer->context), static_cast<const void*>(context));
  return FASTNORM_OK;
}

// The options as planning takes them, with what the group's GPUs leave.
inline PeerDesc planned_desc(const PeerLink& link) {
  PeerDesc desc = link.desc;
  desc.rings = std::min(desc.rings, link.room().rings);
  return desc;
}

// A number of options that all ranks must share.
class Options {
 public:
  void add(uint32_t word) { value_ = (value_ ^ word) * 0x01000193u + 0x9e3779b9u; }
  void add(float value) { add(std::bit_cast<uint32_t>(value)); }
  uint32_t value() const { return value_; }

 private:
  uint32_t value_ = 0x811c9dc5u;
};

}  // namespace fastnorm
