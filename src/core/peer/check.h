// Checks of what the peer functions are given.
#pragma once

#include <cstddef>

#include "core/common/check.h"
#include "core/norm/desc.h"
#include "core/peer/desc.h"

namespace fastnorm {

// Sizes of the public structs in version 0.2, through the last field that they had then.
inline constexpr size_t kFirstPeerOptions =
    offsetof(fastnorm_peer_options, reserved) + sizeof(fastnorm_peer_options::reserved);
inline constexpr size_t kFirstPeerState =
    offsetof(fastnorm_peer_state, reserved) + sizeof(fastnorm_peer_state::reserved);

inline constexpr int64_t kMostPeerColumns = 65536;
inline constexpr int64_t kMostPeerRows = INT32_MAX;

// `device_type`: of the context, for the default of rings.
fastnorm_status check_peer_options(const fastnorm_peer_options* options, int32_t device_type,
                                   PeerDesc* desc, Error& error);

// The buffers of fastnorm_peer_create_from_pointers.
fastnorm_status check_peer_buffers(const PeerDesc& desc, void* const* buffers, int32_t count,
                                   Error& error);

// Refuses flags of the norm that peers do not have.
fastnorm_status check_peer_flags(uint32_t flags, Error& error);

// Refuses fields of the norm that an all-reduce does not have.
fastnorm_status check_peer_norm_fields(const fastnorm_norm_args& norm, Error& error);

// What the norm does not check of an all-reduce: `norm` describes that of args.
fastnorm_status check_peer_allreduce_norm(const fastnorm_peer_allreduce_norm_args& args,
                                          const NormDesc& norm, const PeerDesc& desc, Error& error);

// One part of a sharded norm.
struct PeerPart {
  int64_t heads;
  int64_t columns;  // of a head
};

// All but overlaps. `parts` has room for two.
struct PeerSharded {
  int64_t tokens;
  int32_t count;
  PeerPart parts[2];
};
fastnorm_status check_peer_sharded_norm(const fastnorm_peer_sharded_norm_args& args,
                                        CheckedDevice device, const PeerDesc& desc,
                                        PeerSharded* sharded, Error& error);

}  // namespace fastnorm
