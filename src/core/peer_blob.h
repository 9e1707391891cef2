// What one rank tells the others: its options, and where its buffer is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/error.h"
#include "core/peer_desc.h"

namespace fastnorm {

// Any difference in what ranks must share is another number: message layout, slots, headers.
inline constexpr uint32_t kPeerBlobVersion = 1;
inline constexpr uint32_t kPeerBlobMagic = 0x50724e46;  // "FNrP"

struct PeerBlob {
  uint32_t magic;
  uint32_t version;
  int32_t device_type;
  int16_t rank;
  int16_t ranks;
  uint32_t dtype;  // a fastnorm_dtype_id
  int32_t algorithm;
  int32_t rings;
  int32_t max_columns;
  int64_t one_shot_bytes;
  uint64_t digest;    // of the options that all ranks share
  uint64_t process;   // peer_process() of the rank's process
  uint32_t buffer;    // its number there
  uint32_t checksum;  // of all bytes, with 0 in its place
  uint8_t place[64];  // the device's: where the buffer is
};
static_assert(sizeof(PeerBlob) == FASTNORM_PEER_BLOB_BYTES);

// A number of this process and of this copy of the library.
uint64_t peer_process();

// Of everything that must be the same on all ranks, in any process.
uint64_t peer_digest(const PeerDesc& desc);

// A blob without a place.
PeerBlob make_peer_blob(const PeerDesc& desc, int32_t device_type);
// Sets the checksum; last.
void seal_peer_blob(PeerBlob* blob);

// Compares blob number `index` of an import with this rank's options.
fastnorm_status check_peer_blob(const PeerBlob& blob, int32_t index, const PeerDesc& desc,
                                int32_t device_type, Error& error);

}  // namespace fastnorm
