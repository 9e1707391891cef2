// Records what a warpgroup does when. One thread of each warpgroup writes; no branch and no fence,
// so that events can lie between the issue of a wgmma and its wait.
#pragma once

#include <cstdint>

#include "core/mla_decode/plan.h"
#include "core/mla_decode/profile.h"
#include "cuda/mla_decode/tile.cuh"

namespace fastnorm::cuda::mla {

template <bool kRecords>
struct Recorder {
  __device__ __forceinline__ explicit Recorder(const Place&) {}
  __device__ __forceinline__ void open(const MlaDecodeParams&, const Place&, fastnorm_profile_id) {}
  __device__ __forceinline__ void begin(fastnorm_profile_id, int = 0) const {}
  __device__ __forceinline__ void end(fastnorm_profile_id, int = 0) const {}
  __device__ __forceinline__ void count_piece(const MlaDecodeParams&, const Place&) const {}
  __device__ __forceinline__ void finish(const MlaDecodeParams&, const Place&) const {}
};

// What a thread that writes holds: the end of its events' memory, and how many there is room for;
// below 0, how many had none. For other threads there is no room.
template <>
struct Recorder<true> {
  uint64_t end_of_events = 0;
  uint64_t start_ns = 0, start_cycle = 0;  // until open()
  uint32_t start = 0;                      // of the clock
  mutable int left = 0;

  static __device__ __forceinline__ int writer(const Place& place) {
    return static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x) * kMlaGroups + place.group;
  }
  static __device__ __forceinline__ ProfileWriter* record_of(const MlaDecodeParams& p,
                                                             const Place& place) {
    return reinterpret_cast<ProfileWriter*>(p.profile + sizeof(ProfileHeader)) + writer(place);
  }
  __device__ __forceinline__ explicit Recorder(const Place& place) {
    if (place.thread != 0) return;
    start_ns = ptx::global_nanoseconds();
    start_cycle = ptx::clock_cycles();
    start = static_cast<uint32_t>(start_cycle);
  }
  // Begins the profile, with an event `id` that began at the start. Behind the wait for the
  // stream's previous kernel, which may use the profile.
  __device__ __forceinline__ void open(const MlaDecodeParams& p, const Place& place,
                                       fastnorm_profile_id id) {
    if (place.thread != 0) return;
    const uint32_t blocks = gridDim.x * gridDim.y;
    const auto capacity = static_cast<uint32_t>(p.profile_capacity);
    if (writer(place) == 0) {
      *reinterpret_cast<ProfileHeader*>(p.profile) = {kProfileMagic, kProfileVersion, blocks,
                                                      kMlaGroups,    capacity,        {}};
    }
    ProfileWriter* const record = record_of(p, place);
    record->multiprocessor = ptx::multiprocessor_index();
    record->pieces = 0;
    record->reserved[0] = record->reserved[1] = 0;
    record->start_ns = start_ns;
    record->start_cycle = start_cycle;
    end_of_events = reinterpret_cast<uint64_t>(
        p.profile + sizeof(ProfileHeader) + uint64_t{blocks} * kMlaGroups * sizeof(ProfileWriter) +
        static_cast<uint64_t>(writer(place) + 1) * capacity * sizeof(uint64_t));
    *reinterpret_cast<uint2*>(end_of_events - static_cast<uint64_t>(capacity) * sizeof(uint64_t)) =
        make_uint2(0, word(FASTNORM_PROFILE_BEGIN, id, 0));
    left = p.profile_capacity - 1;
  }

  // The upper word of an event; the lower one is the time since the start.
  __device__ __forceinline__ void put(uint32_t what) const {
    asm volatile(
        "{\n"
        ".reg .pred fits;\n"
        ".reg .u32 now;\n"
        ".reg .s64 address;\n"
        "setp.gt.s32 fits, %0, 0;\n"
        "mov.u32 now, %%clock;\n"
        "sub.u32 now, now, %3;\n"
        "mad.wide.s32 address, %0, -8, %1;\n"
        "@fits st.global.v2.u32 [address], {now, %2};\n"
        "add.s32 %0, %0, -1;\n"
        "}"
        : "+r"(left)
        : "l"(end_of_events), "r"(what), "r"(start)
        : "memory");
  }
  static __device__ __forceinline__ uint32_t word(fastnorm_profile_kind kind,
                                                  fastnorm_profile_id id, int value) {
    return static_cast<uint32_t>(profile_word(0, id, kind, static_cast<uint32_t>(value)) >> 32);
  }
  __device__ __forceinline__ void begin(fastnorm_profile_id id, int value = 0) const {
    put(word(FASTNORM_PROFILE_BEGIN, id, value));
  }
  __device__ __forceinline__ void end(fastnorm_profile_id id, int value = 0) const {
    put(word(FASTNORM_PROFILE_END, id, value));
  }

  __device__ __forceinline__ void count_piece(const MlaDecodeParams& p, const Place& place) const {
    if (place.thread == 0) ++record_of(p, place)->pieces;
  }

  __device__ __forceinline__ void finish(const MlaDecodeParams& p, const Place& place) const {
    if (place.thread != 0) return;
    ProfileWriter* const record = record_of(p, place);
    record->written = static_cast<uint32_t>(p.profile_capacity - max(left, 0));
    record->dropped = static_cast<uint32_t>(max(-left, 0));
    record->end_cycle = ptx::clock_cycles();
    record->end_ns = ptx::global_nanoseconds();
  }
};

}  // namespace fastnorm::cuda::mla
