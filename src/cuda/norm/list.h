// The forward kernels of each architecture, expanded from variants_*.inc into constexpr tables.
// Planning searches them, tests iterate them, and instances.cu turns them into kernels. Needs no
// CUDA.
#pragma once

#include "core/common/tile.h"
#include "core/norm/key.h"
#include "cuda/family.h"
#include "cuda/norm/variant.h"

namespace fastnorm::cuda {

struct Fours {
  uint8_t ahead = 0, early = 0;
};

// One line of the list: kernels that differ only in source, statistic, tile, dtype, flavour and
// architecture.
struct VariantLine {
  uint8_t sources, stats;  // bits by Source and by Stat
  Affine affine;
  Sink sink;
  Access access;
  uint16_t threads, vectors, blocks;  // of tiles: or-ed threads and blocks; bits by vectors
  uint8_t dtypes;                     // bits by Dtype
  uint8_t flavours;                   // bits by Flavour
  Row row;
  Weights weights;
  uint8_t group;
  Loads loads;
  RoundRow round;
  PerArch per_sm;
  uint16_t policies;
  Fours fours = {};
  PerArch pair_per_sm = {};
};

// The words of the list.
namespace variant_words {

using namespace family_words;

// A word whose column may have several of them.
constexpr uint16_t bit_of(auto number) { return 1 << static_cast<int>(number); }

inline constexpr uint8_t plain = bit_of(Source::kPlain), add = bit_of(Source::kAdd);
inline constexpr uint8_t rms = bit_of(Stat::kRms), layer = bit_of(Stat::kLayer);
inline constexpr uint16_t x0 = bit_of(0), x1 = bit_of(1), x2 = bit_of(2), x3 = bit_of(3),
                          x4 = bit_of(4), x5 = bit_of(5), x6 = bit_of(6), x7 = bit_of(7),
                          x8 = bit_of(8);
inline constexpr auto affine_once = Affine::kOnce, affine_f32 = Affine::kF32,
                      affine_any = Affine::kAny;
inline constexpr auto sink_store = Sink::kStore, sink_static = Sink::kStatic,
                      sink_quant = Sink::kQuant;
inline constexpr auto access_vector = Access::kVector, access_unaligned = Access::kUnaligned,
                      access_any = Access::kAny;
inline constexpr auto row_f32 = Row::kF32, row_packed = Row::kPacked;
inline constexpr auto weights_early = Weights::kEarly, weights_late = Weights::kLate,
                      weights_shared = Weights::kShared;
inline constexpr auto loads_cached = Loads::kCached, loads_asked = Loads::kAsked,
                      loads_stream = Loads::kStreaming;
inline constexpr auto round_branch = RoundRow::kBranch, round_in_place = RoundRow::kInPlace,
                      round_predicate = RoundRow::kPredicate;

inline constexpr uint8_t general = bit_of(Flavour::kGeneral), bare = bit_of(Flavour::kLean),
                         bare_cs = bit_of(Flavour::kLeanStreaming),
                         rounded = bit_of(Flavour::kRounded),
                         rounded_cs = bit_of(Flavour::kRoundedStreaming),
                         bare_sm = bit_of(Flavour::kLeanShared);

inline constexpr uint16_t keeps_row = Variant::kKeepsRow, place_anew = Variant::kPlaceAnew,
                          row_first = Variant::kRowFirst, ready = Variant::kReadyWeights,
                          cross = Variant::kCrossFours, factors = Variant::kByFactors,
                          pins = Variant::kPinsAddress, prefetch = Variant::kPrefetches,
                          every = Variant::kEveryVector, unasked = Variant::kWaitsUnasked,
                          clamps = Variant::kClampsTogether, idle = Variant::kIdlePrefetch;

constexpr Fours fours(uint8_t ahead, uint8_t early) { return {ahead, early}; }
constexpr PerArch pair(uint8_t sm80, uint8_t sm90, uint8_t sm100, uint8_t sm120, uint8_t ptx) {
  return {{sm80, sm90, sm100, sm120, ptx}};
}

#define V(sources, stats, affine, sink, access, threads, vectors, blocks, dtypes, flavours, row, \
          weights, group, loads, round, sm80, sm90, sm100, sm120, ptx, ...)                      \
  {sources,         stats,         affine_##affine, sink_##sink,                                 \
   access_##access, threads,       vectors,         blocks,                                      \
   dtypes,          flavours,      row_##row,       weights_##weights,                           \
   group,           loads_##loads, round_##round,   {{sm80, sm90, sm100, sm120, ptx}},           \
   __VA_ARGS__},
inline constexpr VariantLine kLines[] = {
#include "cuda/norm/variants_codes.inc"
#include "cuda/norm/variants_store.inc"
#include "cuda/norm/variants_unaligned.inc"
};
#undef V

}  // namespace variant_words

// The policies of one kernel of a line. Some apply to a part of a line's kernels only, as the head
// of the list says.
constexpr uint16_t policies_of(const VariantLine& line, Dtype dtype, Flavour flavour, int arch) {
  const bool bare = flavour != Flavour::kGeneral && flavour != Flavour::kRounded &&
                    flavour != Flavour::kRoundedStreaming;
  const bool spare = arch == kColumn90 || arch == kColumnPtx;
  int policies = line.policies;
  if (!bare) policies &= ~(Variant::kWaitsUnasked | Variant::kClampsTogether);
  if (!spare) policies &= ~(Variant::kByFactors | Variant::kPinsAddress);
  if (dtype != Dtype::kBF16) policies &= ~Variant::kByFactors;
  return static_cast<uint16_t>(policies);
}

constexpr Variant variant_of(const VariantLine& line, NormKey key, Tile tile, int arch) {
  const Flavour flavour = key.flavour;
  return {.key = key,
          .tile = tile,
          .row = line.row,
          .weights = line.weights,
          .group = line.group,
          .loads = flavour == Flavour::kLeanStreaming || flavour == Flavour::kRoundedStreaming
                       ? Loads::kStreaming
                       : line.loads,
          .round = line.round,
          .fours_ahead = line.fours.ahead,
          .fours_early = line.fours.early,
          .blocks_per_sm = line.per_sm.of[arch],
          .pair_blocks_per_sm = line.pair_per_sm.of[arch],
          .policies = policies_of(line, key.dtype, flavour, arch)};
}

// The two words that name a kernel.
struct VariantWords {
  uint64_t order;     // packed(key, tile)
  uint64_t policies;  // Variant::packed_policies()
};

constexpr NormEntry make_norm_entry(const Variant& v, uint16_t line) {
  NormEntry entry = make_entry(v.key, v.tile);
  entry.line = line;
  entry.every = v.has(Variant::kEveryVector) || v.key.access != Access::kVector;
  entry.prefetches = v.has(Variant::kPrefetches) && !v.has(Variant::kIdlePrefetch);
  return entry;
}

struct NormFamily {
  static constexpr const char* kName = "norm";
  using Word = VariantWords;
  using Entry = NormEntry;
  static constexpr auto& kLines = variant_words::kLines;
  // For all kernels of a dtype at once the compiler would need 11 GB.
  static constexpr int kParts = kRowDtypes * 2, kForms = 3;  // by GridForm
  static constexpr uint32_t kOwnSharedBytes = 8 << 10;
  static constexpr int part_of(Dtype dtype, Source source) {
    return static_cast<int>(dtype) * 2 + static_cast<int>(source);
  }
  static constexpr int part_of(const Variant& v) { return part_of(v.key.dtype, v.key.source); }
  static constexpr Word word_of(const Variant& v) {
    return {packed(v.key, v.tile), v.packed_policies()};
  }
  static constexpr Variant variant_of(Word word) {
    return cuda::variant_of(word.order, word.policies);
  }
  static constexpr uint64_t order_of(Word word) { return word.order; }
  static constexpr Entry make_entry(Word word, uint16_t line) {
    return make_norm_entry(variant_of(word), line);
  }
  static constexpr void expand(const VariantLine& line, Dtype dtype, int arch, auto use) {
    const auto each = [&](int source, int stat, int flavour, int threads, int vectors, int blocks) {
      const NormKey key = {dtype,     Source(source), Stat(stat),      line.affine,
                           line.sink, line.access,    Flavour(flavour)};
      use(cuda::variant_of(line, key,
                           {static_cast<int16_t>(1 << threads), static_cast<int8_t>(vectors),
                            static_cast<int8_t>(1 << blocks)},
                           arch));
    };
    for_each_choice(each, line.sources, line.stats, line.flavours, line.threads, line.vectors,
                    line.blocks);
  }
};

}  // namespace fastnorm::cuda
