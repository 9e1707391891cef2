// The buffer that a profiled MLA decode call writes. Needs no CUDA; trace.h reads it on
// the host.
//
//   ProfileHeader                       64 bytes
//   ProfileWriter[blocks * groups]      64 bytes each; group g of block b is b * groups + g
//   uint64_t[blocks * groups][capacity] events, each writer's in order
//
// The kernel writes all of it. A writer with more than `capacity` events counts the rest in
// `dropped`.
#pragma once

#include <cstdint>

namespace fastnorm {

struct ProfileHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t blocks;    // thread blocks
  uint32_t groups;    // warpgroups of a block
  uint32_t capacity;  // events of a writer
  uint64_t reserved[5];
};
static_assert(sizeof(ProfileHeader) == 64);

inline constexpr uint64_t kProfileMagic = 0x464f52504d524f4e;  // "NORMPROF"
inline constexpr uint32_t kProfileVersion = 1;

// A warpgroup. Its clock is a straight line through two points. That makes the clocks of different
// SMs comparable.
struct ProfileWriter {
  uint32_t multiprocessor;
  uint32_t pieces;                 // of work that it took
  uint32_t written;                // events, at most the capacity
  uint32_t dropped;                // events
  uint64_t start_cycle, start_ns;  // clock64() and globaltimer at the start
  uint64_t end_cycle, end_ns;      // at the end
  uint64_t reserved[2];
};
static_assert(sizeof(ProfileWriter) == 64);

// An event in 64 bits: cycles since the writer's start modulo 2^32 in bits 0 to 31,
// fastnorm_profile_id in 32 to 39. Then fastnorm_profile_kind in 40 and 41, and the value in 42 to
// 63. Consecutive events of a writer are less than 2^32 cycles apart.
constexpr uint64_t profile_word(uint32_t cycle, uint32_t id, uint32_t kind, uint32_t value) {
  return cycle | uint64_t{(id & 0xff) | (kind & 3) << 8 | value << 10} << 32;
}
constexpr uint32_t profile_cycle(uint64_t word) { return static_cast<uint32_t>(word); }
constexpr uint32_t profile_id(uint64_t word) { return word >> 32 & 0xff; }
constexpr uint32_t profile_kind(uint64_t word) { return word >> 40 & 3; }
constexpr uint32_t profile_value(uint64_t word) { return static_cast<uint32_t>(word >> 42); }

constexpr uint64_t profile_bytes(uint64_t writers, uint64_t capacity) {
  return sizeof(ProfileHeader) + writers * (sizeof(ProfileWriter) + 8 * capacity);
}

}  // namespace fastnorm
