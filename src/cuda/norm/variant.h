// One kernel as data: which calls it serves, its tile, and the policies that its code reads. Needs
// no CUDA.
//
// variants_*.inc list the kernels that exist. list.h makes tables of them. A kernel's template
// arguments are the two words of its Variant.
#pragma once

#include <cstdint>

#include "core/common/word.h"
#include "core/norm/key.h"

namespace fastnorm::cuda {

// How registers hold the row between its load and its store.
enum class Row : uint8_t {
  kF32,     // unpacked once
  kPacked,  // as loaded, in half the registers; each use unpacks it again
};

// When weight and bias are loaded.
enum class Weights : uint8_t {
  kEarly,   // into registers before the reduction
  kLate,    // after the reduction
  kShared,  // into shared memory before the reduction, into registers after it
};

// How the row is loaded.
enum class Loads : uint8_t {
  kCached,
  kAsked,      // the call decides at run time
  kStreaming,  // ld.global.cs: the lines do not stay in L1
};

// How the normalised row is rounded to x's dtype if the call asks for it.
enum class RoundRow : uint8_t {
  kBranch,     // the code after the reduction exists twice, with and without rounding
  kInPlace,    // a pass over the row before the weights, behind one branch
  kPredicate,  // value by value without a branch
};

struct Variant {
  // Policies that are on or off.
  enum Policy : uint16_t {
    kKeepsRow = 1 << 0,         // the row's indices stay in registers across the reduction
    kPlaceAnew = 1 << 1,        // the sink computes the row's address again; keeping it would spill
    kRowFirst = 1 << 2,         // the row's loads are issued before the weights' loads
    kReadyWeights = 1 << 3,     // weight and bias are unpacked before the sum is known
    kCrossFours = 1 << 4,       // odd groups of 4 lanes read the second half of f32 weights first
    kByFactors = 1 << 5,        // a factor and a mask in registers unpack a packed row
    kPinsAddress = 1 << 6,      // the address of unaligned results stays in a register
    kPrefetches = 1 << 7,       // may bring a later row into L2
    kEveryVector = 1 << 8,      // any vector of a row may be missing, not only its last one
    kWaitsUnasked = 1 << 9,     // waits for the kernel before, without a test whether it must
    kClampsTogether = 1 << 10,  // e2m1 codes: one test per thread whether values are out of range
    kIdlePrefetch = 1 << 11,    // kPrefetches does not help; planning does not ask for it
    kRotates = 1 << 12,         // blocks of columns are rotated before their codes
    kStoresY = 1 << 13,         // Sink::kStatic: y leaves, too, if the call wants it
  };

  NormKey key;
  Tile tile;
  Row row = Row::kF32;
  Weights weights = Weights::kEarly;
  // Vectors loaded together: of late weights, and of the row with Access::kAny.
  uint8_t group = 0;
  Loads loads = Loads::kCached;
  RoundRow round = RoundRow::kBranch;
  // f32 weights of 16-bit rows: 16-byte loads in flight, and those issued before the reduction.
  uint8_t fours_ahead = 0, fours_early = 0;
  uint8_t blocks_per_sm = 1;       // for __launch_bounds__
  uint8_t pair_blocks_per_sm = 0;  // of its form for two calls; 0: none
  uint16_t policies = 0;           // of Policy

  constexpr bool operator==(const Variant&) const = default;

  constexpr bool has(Policy policy) const { return (policies & policy) != 0; }

  // All but key and tile, which are in packed(key, tile).
  static constexpr void numbers(auto& v, auto use) {
    use(v.policies, 16), use(v.pair_blocks_per_sm, 6), use(v.blocks_per_sm, 6);
    use(v.fours_early, 4), use(v.fours_ahead, 4), use(v.group, 4);
    use(v.round, 2), use(v.loads, 2), use(v.weights, 2), use(v.row, 2);
  }
  constexpr uint64_t packed_policies() const { return packed_word<uint64_t>(*this); }
};

// What the two words of a kernel's name mean.
constexpr Variant variant_of(uint64_t order, uint64_t policies) {
  Variant v = variant_in<Variant>(policies);
  v.key = key_of_packed(order);
  v.tile = tile_of_packed(order);
  return v;
}

}  // namespace fastnorm::cuda
