// Messages between ranks: sent, awaited within a limit, and emptied.
//
// A vector of 16 bytes is there when none of its words is empty. Whoever takes it empties it at
// once. Before it sends its next message it reads the vector that it emptied before: read back as
// empty, it is so for the peer, too, whose next message goes there. Fences would take 25 % more of
// a row's time. A call's last message of a ring needs no such reading: the kernel's end orders what
// it emptied before all that the next call sends.
#pragma once

#include "cuda/common/element.cuh"
#include "cuda/common/ptx/grid.cuh"
#include "cuda/common/ptx/system.cuh"
#include "cuda/peer/params.h"
#include "fastnorm/peer.h"

namespace fastnorm::cuda {

__device__ __forceinline__ uint4 peer_sent(const uint4& v) {
  return make_uint4(fastnorm::peer_sent(v.x), fastnorm::peer_sent(v.y), fastnorm::peer_sent(v.z),
                    fastnorm::peer_sent(v.w));
}

// Whether some word of it has not arrived.
__device__ __forceinline__ bool is_missing(const uint4& v) {
  return v.x == kPeerEmpty || v.y == kPeerEmpty || v.z == kPeerEmpty || v.w == kPeerEmpty;
}
// Whether all that was taken of it is empty for everybody.
__device__ __forceinline__ bool is_empty(const uint4& v) {
  return v.x == kPeerEmpty && v.y == kPeerEmpty && v.z == kPeerEmpty && v.w == kPeerEmpty;
}
__device__ __forceinline__ void put_empty(char* address) {
  ptx::st_system_v4(address, make_uint4(kPeerEmpty, kPeerEmpty, kPeerEmpty, kPeerEmpty));
}

__device__ __forceinline__ bool is_stopped(const PeerExchange& p) {
  return ptx::ld_system_u32(&p.control->stopped) != 0;
}

// The first reason stays.
__device__ __forceinline__ void stop(const PeerExchange& p, fastnorm_peer_error error, int rank) {
  const uint32_t word = static_cast<uint32_t>(error) | static_cast<uint32_t>(rank + 1) << 8;
  if (ptx::set_if_zero(&p.control->stopped, word) == 0) ptx::st_system_u32(p.report, word);
}

// A thread's patience with others.
struct PeerWait {
  static constexpr uint32_t kLooks = 64;  // between two looks at the clock

  // Whether the look that found something missing is followed by one at the clock.
  __device__ __forceinline__ bool is_due() { return ++looks % kLooks == 0; }
  // That look at `rank`'s message. True: the call has ended, by this thread or another one.
  __device__ __forceinline__ bool is_over(const PeerExchange& p, int rank) {
    const uint64_t now = ptx::nanoseconds();
    if (since == 0) since = now;
    if (now - since > p.wait_ns) stop(p, FASTNORM_PEER_ERROR_MISSING, rank);
    return is_stopped(p);
  }
  // One look more at `rank`'s message, as is_over() has it.
  __device__ __forceinline__ bool gives_up(const PeerExchange& p, int rank) {
    return is_due() && is_over(p, rank);
  }
  // Something came.
  __device__ __forceinline__ void renew() { looks = 0, since = 0; }

  uint32_t looks = 0;
  uint64_t since = 0;
};

// Bytes from a ring's first message to its message `number`.
__device__ __forceinline__ uint32_t slot_at(const PeerExchange& p, int channel, uint32_t number) {
  return number % kPeerSlots * p.message[channel];
}
// Message `number` of a ring from rank `source`, in the buffer of rank `of`.
__device__ __forceinline__ char* message_at(const PeerExchange& p, int channel, int of, int source,
                                            int ring, uint32_t number) {
  const auto at =
      static_cast<uint32_t>(source * p.all_rings + ring) * kPeerSlots + number % kPeerSlots;
  return p.buffer[of] + p.channel[channel] + uint64_t{at} * p.message[channel];
}
static_assert(kPeerHeaderWords * 4 == kVectorBytes);
// Bytes from a message's begin to its header.
__device__ __forceinline__ uint32_t header_at(const PeerExchange& p, int channel) {
  return p.message[channel] - kVectorBytes;
}

// Ranks beside this one, in ascending order.
__device__ __forceinline__ int other_rank(const PeerExchange& p, int number) {
  return number < p.rank ? number : number + 1;
}
// Rank number `number` in this rank's order: each rank begins with the one behind it, so that not
// all send to one.
__device__ __forceinline__ int next_rank(const PeerExchange& p, int number) {
  const int rank = p.rank + 1 + number;
  return rank < p.ranks ? rank : rank - p.ranks;
}

__device__ __forceinline__ uint4 header_of(const PeerExchange& p, uint32_t number) {
  return peer_sent(make_uint4(p.rows, p.columns, number, p.options));
}

__device__ __forceinline__ void send_header(const PeerExchange& p, int channel, int to, int ring,
                                            uint32_t number) {
  ptx::st_system_v4(message_at(p, channel, to, p.rank, ring, number) + header_at(p, channel),
                    header_of(p, number));
}

// One vector of a message, `offset` bytes behind its begin, when it is there. False: the call has
// ended. `before`: the message before it was of this call, too.
__device__ __forceinline__ bool take_vector(const PeerExchange& p, int channel, int source,
                                            int ring, uint32_t number, int64_t offset, bool before,
                                            PeerWait& wait, uint4* taken) {
  char* const from = message_at(p, channel, p.rank, source, ring, number) + offset;
  const char* const last = message_at(p, channel, p.rank, source, ring, number - 1) + offset;
  for (;;) {
    *taken = ptx::ld_system_v4(from);
    bool missing = is_missing(*taken);
    if (before) missing |= !is_empty(ptx::ld_system_v4(last));
    if (!missing) break;
    if (wait.gives_up(p, source)) return false;
  }
  wait.renew();
  put_empty(from);
  return true;
}

// Whether a header is that of this call. If not, the call ends here.
__device__ __forceinline__ bool agrees(const PeerExchange& p, int source, uint32_t number,
                                       const uint4& got) {
  const uint4 own = header_of(p, number);
  if (got.x == own.x && got.y == own.y && got.z == own.z && got.w == own.w) return true;
  stop(p, FASTNORM_PEER_ERROR_DISAGREES, source);
  return false;
}

// By one thread of a block. False: the call has ended, or ends here, as the rank makes another.
__device__ __forceinline__ bool take_header(const PeerExchange& p, int channel, int source,
                                            int ring, uint32_t number, bool before,
                                            PeerWait& wait) {
  uint4 got;
  return take_vector(p, channel, source, ring, number, header_at(p, channel), before, wait, &got) &&
         agrees(p, source, number, got);
}

// The ring's next message, and its number after the call. The load does not use L1, whose line may
// be that of another ring in the previous kernel.
__device__ __forceinline__ uint32_t first_number(const PeerExchange& p, int channel, int ring) {
  return ptx::ld_system_u32(&p.control->number[channel][ring]);
}
__device__ __forceinline__ void end_ring(const PeerExchange& p, int channel, int ring,
                                         uint32_t number) {
  ptx::st_global_u32(&p.control->number[channel][ring], number);
}
// By one thread of the grid.
__device__ __forceinline__ void count_call(const PeerExchange& p) {
  ptx::add_global_u32(&p.control->calls, 1);
}

}  // namespace fastnorm::cuda
