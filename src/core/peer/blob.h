// What one rank tells the others: its options, and where its buffer is.
#pragma once

#include <cstdint>

#include "core/common/error.h"
#include "core/peer/desc.h"

namespace fastnorm {

// Any difference in what ranks must share is another number: message layout, slots, headers.
inline constexpr uint32_t kPeerBlobVersion = 2;
inline constexpr uint32_t kPeerBlobMagic = 0x50724e46;  // "FNrP"

struct PeerBlob {
  uint32_t magic;
  uint32_t version;
  int16_t device_type;
  int16_t multiprocessors;  // of a GPU
  int8_t rank;
  int8_t ranks;
  int16_t algorithm;
  uint32_t dtype;  // a fastnorm_dtype_id
  uint32_t gpu;    // a number of the rank's GPU, or of its slice of one
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

// A hash of everything that must be the same on all ranks, in any process.
uint64_t peer_digest(const PeerDesc& desc);

// A blob without a place.
PeerBlob make_peer_blob(const PeerDesc& desc, int32_t device_type);
// Sets the checksum; last.
void seal_peer_blob(PeerBlob* blob);

// What the GPUs of a group leave to the kernel of a call. Blocks of all ranks wait for each other,
// so those of one GPU have to be there at the same time.
struct PeerRoom {
  int32_t rings = kMostPeerRings;  // of a call, at most
  bool alone = true;               // every rank has a GPU of its own
};
struct PeerGpu {
  uint32_t number;
  int32_t multiprocessors;
};
// All ranks say the same.
PeerRoom peer_room(const PeerGpu* gpus, int32_t ranks);

// Compares blob number `index` of an import with this rank's options.
fastnorm_status check_peer_blob(const PeerBlob& blob, int32_t index, const PeerDesc& desc,
                                int32_t device_type, Error& error);

}  // namespace fastnorm
