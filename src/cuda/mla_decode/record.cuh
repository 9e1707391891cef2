// Records what a warpgroup does when. One thread of each warpgroup writes; no branch and no fence,
// so that events can lie between the issue of a wgmma and its wait.
#pragma once

#include <cstdint>

#include "core/mla_decode_plan.h"
#include "cuda/mla_decode/tile.cuh"

namespace fastnorm::cuda::mla {

template <bool kRecords>
struct Recorder {
  __device__ __forceinline__ Recorder(const MlaDecodeParams&, const Place&) {}
  __device__ __forceinline__ void begin(fastnorm_profile_id, int = 0) const {}
  __device__ __forceinline__ void end(fastnorm_profile_id, int = 0) const {}
  __device__ __forceinline__ void count_piece(const MlaDecodeParams&, const Place&) const {}
  __device__ __forceinline__ void finish(const MlaDecodeParams&, const Place&) const {}
};

// State in shared memory: {events so far, clock at the start, address of the first event}.
template <>
struct Recorder<true> {
  uint32_t state;
  uint32_t writes;  // whether this thread does
  uint32_t capacity;

  static __device__ __forceinline__ int writer(const Place& place) {
    return static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x) * static_cast<int>(kMlaGroups) +
           place.group;
  }
  static __device__ __forceinline__ ProfileWriter* record_of(const MlaDecodeParams& p,
                                                             const Place& place) {
    return reinterpret_cast<ProfileWriter*>(p.profile + sizeof(ProfileHeader)) + writer(place);
  }

  __device__ __forceinline__ Recorder(const MlaDecodeParams& p, const Place& place)
      : state(place.shared + kProfile + static_cast<uint32_t>(place.group) * 16),
        writes(place.thread == 0),
        capacity(static_cast<uint32_t>(p.profile_capacity)) {
    if (writes == 0) return;
    const uint32_t blocks = gridDim.x * gridDim.y;
    if (writer(place) == 0) {
      *reinterpret_cast<ProfileHeader*>(p.profile) = {kProfileMagic, kProfileVersion, blocks,
                                                      kMlaGroups,    capacity,        {}};
    }
    ProfileWriter* const record = record_of(p, place);
    record->multiprocessor = ptx::multiprocessor_index();
    record->pieces = 0;
    record->reserved[0] = record->reserved[1] = 0;
    record->start_ns = ptx::global_nanoseconds();
    const uint64_t start = ptx::clock_cycles();
    record->start_cycle = start;
    const auto events = reinterpret_cast<uint64_t>(
        p.profile + sizeof(ProfileHeader) + uint64_t{blocks} * kMlaGroups * sizeof(ProfileWriter) +
        static_cast<uint64_t>(writer(place)) * capacity * sizeof(uint64_t));
    ptx::store_shared_u32(state, 0);
    ptx::store_shared_u32(state + 4, static_cast<uint32_t>(start));
    ptx::store_shared_u32(state + 8, static_cast<uint32_t>(events));
    ptx::store_shared_u32(state + 12, static_cast<uint32_t>(events >> 32));
  }

  // The upper word of an event; the lower one is the time.
  __device__ __forceinline__ void put(uint32_t what) const {
    asm volatile(
        "{\n"
        ".reg .pred writes, fits;\n"
        ".reg .u32 now, count, start, low, high;\n"
        ".reg .u64 base, address;\n"
        "mov.u32 now, %%clock;\n"
        "setp.ne.u32 writes, %1, 0;\n"
        "@writes ld.shared.v4.u32 {count, start, low, high}, [%0];\n"
        "sub.u32 now, now, start;\n"
        "mov.b64 base, {low, high};\n"
        "mad.wide.u32 address, count, 8, base;\n"
        "setp.lt.and.u32 fits, count, %2, writes;\n"
        "@fits st.global.v2.u32 [address], {now, %3};\n"
        "add.u32 count, count, 1;\n"
        "@writes st.shared.u32 [%0], count;\n"
        "}" ::"r"(state),
        "r"(writes), "r"(capacity), "r"(what)
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
    if (writes != 0) ++record_of(p, place)->pieces;
  }

  __device__ __forceinline__ void finish(const MlaDecodeParams& p, const Place& place) const {
    if (writes == 0) return;
    ProfileWriter* const record = record_of(p, place);
    const uint32_t count = ptx::load_shared_u32(state);
    record->written = min(count, capacity);
    record->dropped = count - min(count, capacity);
    record->end_cycle = ptx::clock_cycles();
    record->end_ns = ptx::global_nanoseconds();
  }
};

}  // namespace fastnorm::cuda::mla
