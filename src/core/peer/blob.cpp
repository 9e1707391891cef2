#include "core/peer/blob.h"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <random>

#include "core/common/check.h"
#include "core/peer/choice.h"
#include "core/peer/layout.h"

namespace fastnorm {
namespace {

// FNV-1a.
uint64_t digest_of(const void* data, size_t bytes, uint64_t start = 0xcbf29ce484222325) {
  const auto* byte = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) start = (start ^ byte[i]) * 0x100000001b3;
  return start;
}

uint32_t checksum_of(PeerBlob blob) {
  blob.checksum = 0;
  const uint64_t digest = digest_of(&blob, sizeof blob);
  return static_cast<uint32_t>(digest ^ digest >> 32);
}

uint32_t id_of(Dtype dtype) { return static_cast<uint32_t>(kDtypes[static_cast<int>(dtype)].id); }

const char* name_of(uint32_t id) {
  const fastnorm_dtype dtype = {static_cast<uint8_t>(id), static_cast<uint8_t>(id >> 8),
                                static_cast<uint16_t>(id >> 16)};
  return dtype_name(dtype_from(dtype));
}

}  // namespace

uint64_t peer_process() {
  static const uint64_t token = [] {
    std::random_device random;
    return static_cast<uint64_t>(random()) << 32 | random();
  }();
  // A fork has the same token.
  const auto process = static_cast<uint64_t>(getpid());
  return digest_of(&process, sizeof process, token);
}

uint64_t peer_digest(const PeerDesc& desc) {
  const uint64_t shared[] = {kPeerBlobVersion,
                             static_cast<uint64_t>(desc.ranks),
                             id_of(desc.dtype),
                             static_cast<uint64_t>(desc.algorithm),
                             static_cast<uint64_t>(desc.max_columns),
                             static_cast<uint64_t>(peer_one_shot_bytes(desc)),
                             static_cast<uint64_t>(desc.rings),
                             static_cast<uint64_t>(kPeerSlots),
                             peer_layout(desc).bytes()};
  return digest_of(shared, sizeof shared);
}

PeerBlob make_peer_blob(const PeerDesc& desc, int32_t device_type) {
  PeerBlob blob = {};
  blob.magic = kPeerBlobMagic;
  blob.version = kPeerBlobVersion;
  blob.device_type = static_cast<int16_t>(device_type);
  blob.rank = static_cast<int8_t>(desc.rank);
  blob.ranks = static_cast<int8_t>(desc.ranks);
  blob.dtype = id_of(desc.dtype);
  blob.algorithm = static_cast<int16_t>(desc.algorithm);
  blob.rings = desc.rings;
  blob.max_columns = static_cast<int32_t>(desc.max_columns);
  blob.one_shot_bytes = desc.one_shot_bytes;
  blob.digest = peer_digest(desc);
  blob.process = peer_process();
  return blob;
}

PeerRoom peer_room(const PeerGpu* gpus, int32_t ranks) {
  std::ptrdiff_t sharing = 1;
  int32_t least = gpus[0].multiprocessors;
  for (int32_t r = 0; r < ranks; ++r) {
    sharing = std::max(sharing, std::count_if(gpus, gpus + ranks, [&](const PeerGpu& other) {
                         return other.number == gpus[r].number;
                       }));
    least = std::min(least, gpus[r].multiprocessors);
  }
  if (sharing == 1) return {};
  return {std::max(1, least / static_cast<int32_t>(sharing)), false};
}

void seal_peer_blob(PeerBlob* blob) { blob->checksum = checksum_of(*blob); }

fastnorm_status check_peer_blob(const PeerBlob& blob, int32_t index, const PeerDesc& desc,
                                int32_t device_type, Error& error) {
  FASTNORM_REQUIRE(blob.magic == kPeerBlobMagic, FASTNORM_ERROR_ARGUMENT,
                   "blobs[%d] begins with 0x%08x; required: bytes of fastnorm_peer_export", index,
                   blob.magic);
  FASTNORM_REQUIRE(blob.version == kPeerBlobVersion, FASTNORM_ERROR_UNSUPPORTED,
                   "blobs[%d] has version %u; this library has %u; nearest: one version of the "
                   "library on all ranks",
                   index, blob.version, kPeerBlobVersion);
  FASTNORM_REQUIRE(blob.checksum == checksum_of(blob), FASTNORM_ERROR_ARGUMENT,
                   "blobs[%d] has the checksum 0x%08x and its bytes 0x%08x; required: bytes of "
                   "fastnorm_peer_export, unchanged",
                   index, blob.checksum, checksum_of(blob));
  FASTNORM_REQUIRE(blob.device_type == device_type, FASTNORM_ERROR_UNSUPPORTED,
                   "blobs[%d] has device_type %d; this rank has %d; nearest: one type of device on "
                   "all ranks",
                   index, blob.device_type, device_type);
  FASTNORM_REQUIRE(blob.rank == index, FASTNORM_ERROR_ARGUMENT,
                   "blobs[%d] has rank %d; required: %d, blobs in the order of ranks", index,
                   blob.rank, index);
  const struct {
    const char* name;
    int64_t theirs, ours;
  } numbers[] = {{"ranks", blob.ranks, desc.ranks},
                 {"algorithm", blob.algorithm, desc.algorithm},
                 {"max_columns", blob.max_columns, desc.max_columns},
                 {"one_shot_bytes", blob.one_shot_bytes, desc.one_shot_bytes},
                 {"rings", blob.rings, desc.rings}};
  for (const auto& n : numbers) {
    FASTNORM_REQUIRE(n.theirs == n.ours, FASTNORM_ERROR_ARGUMENT,
                     "blobs[%d] has %s %" PRId64 "; required: %" PRId64 ", as this rank", index,
                     n.name, n.theirs, n.ours);
  }
  FASTNORM_REQUIRE(blob.dtype == id_of(desc.dtype), FASTNORM_ERROR_ARGUMENT,
                   "blobs[%d] has dtype %s; required: %s, as this rank", index, name_of(blob.dtype),
                   dtype_name(desc.dtype));
  FASTNORM_REQUIRE(blob.digest == peer_digest(desc), FASTNORM_ERROR_ARGUMENT,
                   "blobs[%d] has the digest 0x%016" PRIx64 "; required: 0x%016" PRIx64
                   ", as this rank: one build of the library on all ranks",
                   index, blob.digest, peer_digest(desc));
  return FASTNORM_OK;
}

}  // namespace fastnorm
