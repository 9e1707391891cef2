// Peers at the ABI: one rank's end, and how ranks find each other.
#include "api/peer.h"

#include <cstring>

#include "core/peer/check.h"
#include "core/peer/layout.h"

namespace fastnorm {
namespace {

fastnorm_status create(fastnorm_context* context, const fastnorm_peer_options* options,
                       bool has_buffers, void* const* buffers, int32_t count, fastnorm_peer** peer,
                       Error& error) {
  FASTNORM_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "peer is NULL; required: a pointer to receive the peer");
  *peer = nullptr;
  FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "context is NULL; required: a context");
  PeerDesc desc;
  FASTNORM_TRY(check_peer_options(options, context->device->facts.device_type, &desc, error));
  if (has_buffers) FASTNORM_TRY(check_peer_buffers(desc, buffers, count, error));
  auto made = std::make_unique<fastnorm_peer>();
  made->context = context;
  FASTNORM_TRY(
      context->device->create_peer(desc, has_buffers ? buffers : nullptr, &made->link, error));
  *peer = made.release();
  return FASTNORM_OK;
}

fastnorm_status import(fastnorm_peer* peer, const void* blobs, size_t bytes, Error& error) {
  FASTNORM_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT, "peer is NULL; required: a peer");
  const PeerDesc& desc = peer->link->desc;
  const size_t needed = static_cast<size_t>(desc.ranks) * FASTNORM_PEER_BLOB_BYTES;
  FASTNORM_REQUIRE(blobs != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "blobs is NULL; required: %zu bytes of all ranks", needed);
  FASTNORM_REQUIRE(bytes == needed, FASTNORM_ERROR_ARGUMENT,
                   "bytes is %zu; required: %zu, %d blobs of FASTNORM_PEER_BLOB_BYTES (%d)", bytes,
                   needed, desc.ranks, FASTNORM_PEER_BLOB_BYTES);
  PeerBlob all[kMaxRanks];
  std::memcpy(all, blobs, needed);
  for (int32_t r = 0; r < desc.ranks; ++r) {
    FASTNORM_TRY(check_peer_blob(all[r], r, desc, peer->context->device->facts.device_type, error));
  }
  return peer->link->connect(all, error);
}

}  // namespace
}  // namespace fastnorm

using fastnorm::Error;

fastnorm_status fastnorm_peer_buffer_bytes(fastnorm_context* context,
                                           const fastnorm_peer_options* options, uint64_t* bytes) {
  return fastnorm::guarded([&](Error& error) {
    FASTNORM_REQUIRE(context != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "context is NULL; required: a context");
    FASTNORM_REQUIRE(bytes != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "bytes is NULL; required: a pointer to receive the number");
    fastnorm::PeerDesc desc;
    FASTNORM_TRY(
        fastnorm::check_peer_options(options, context->device->facts.device_type, &desc, error));
    FASTNORM_TRY(context->device->check_peers(error));
    *bytes = fastnorm::peer_layout(desc).bytes();
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_peer_create(fastnorm_context* context,
                                     const fastnorm_peer_options* options, fastnorm_peer** peer) {
  return fastnorm::guarded([&](Error& error) {
    return fastnorm::create(context, options, false, nullptr, 0, peer, error);
  });
}

fastnorm_status fastnorm_peer_create_from_pointers(fastnorm_context* context,
                                                   const fastnorm_peer_options* options,
                                                   void* const* buffers, int32_t count,
                                                   fastnorm_peer** peer) {
  return fastnorm::guarded([&](Error& error) {
    return fastnorm::create(context, options, true, buffers, count, peer, error);
  });
}

fastnorm_status fastnorm_peer_export(fastnorm_peer* peer, void* blob, size_t bytes) {
  return fastnorm::guarded([&](Error& error) {
    FASTNORM_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT, "peer is NULL; required: a peer");
    FASTNORM_REQUIRE(blob != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "blob is NULL; required: room for %d bytes", FASTNORM_PEER_BLOB_BYTES);
    FASTNORM_REQUIRE(bytes >= FASTNORM_PEER_BLOB_BYTES, FASTNORM_ERROR_ARGUMENT,
                     "bytes is %zu; required: at least FASTNORM_PEER_BLOB_BYTES (%d)", bytes,
                     FASTNORM_PEER_BLOB_BYTES);
    fastnorm::PeerBlob made;
    FASTNORM_TRY(peer->link->export_blob(&made, error));
    std::memcpy(blob, &made, sizeof made);
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_peer_import(fastnorm_peer* peer, const void* blobs, size_t bytes) {
  return fastnorm::guarded(
      [&](Error& error) { return fastnorm::import(peer, blobs, bytes, error); });
}

fastnorm_status fastnorm_peer_status(const fastnorm_peer* peer, fastnorm_peer_state* state) {
  return fastnorm::guarded([&](Error& error) {
    FASTNORM_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT, "peer is NULL; required: a peer");
    FASTNORM_REQUIRE(state != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "state is NULL; required: a fastnorm_peer_state");
    FASTNORM_REQUIRE(state->struct_size >= fastnorm::kFirstPeerState, FASTNORM_ERROR_ARGUMENT,
                     "state.struct_size is %zu; required: at least %zu", state->struct_size,
                     fastnorm::kFirstPeerState);
    fastnorm_peer_state result = {};
    FASTNORM_TRY(peer->link->state(&result, error));
    fastnorm::give_struct(result, state);
    return FASTNORM_OK;
  });
}

fastnorm_status fastnorm_peer_reset(fastnorm_peer* peer) {
  return fastnorm::guarded([&](Error& error) {
    FASTNORM_REQUIRE(peer != nullptr, FASTNORM_ERROR_ARGUMENT, "peer is NULL; required: a peer");
    return peer->link->reset(error);
  });
}

void fastnorm_peer_destroy(fastnorm_peer* peer) { delete peer; }
