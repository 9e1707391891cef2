// The forward kernels of each architecture, expanded from variants_*.inc into constexpr tables.
// Planning searches them, tests iterate them, and instances.cu turns them into kernels. Needs no
// CUDA.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string_view>

#include "core/norm_key.h"
#include "core/norm_tile.h"
#include "cuda/norm/variant.h"

namespace fastnorm::cuda {

// The architectures, in the order of the list's columns.
enum ListArch : int { kList80, kList90, kList100, kList120, kListPtx, kListArchs };

struct Fours {
  uint8_t ahead = 0, early = 0;
};
// For each architecture; 0: it has no such kernel.
struct BlocksPerSm {
  uint8_t of[kListArchs] = {};
};

// One line of the list: kernels that differ only in dtype, flavour and architecture.
struct VariantLine {
  Source source;
  Stat stat;
  Affine affine;
  Sink sink;
  Access access;
  Tile tile;
  uint8_t dtypes;    // bits by Dtype
  uint8_t flavours;  // bits by Beside
  Row row;
  Weights weights;
  uint8_t group;
  Loads loads;
  RoundRow round;
  BlocksPerSm blocks_per_sm;
  uint16_t policies;
  Fours fours = {};
  BlocksPerSm pair_blocks_per_sm = {};
};

// The words of the list.
namespace variant_words {

inline constexpr auto source_plain = Source::kPlain, source_add = Source::kAdd;
inline constexpr auto stat_rms = Stat::kRms, stat_layer = Stat::kLayer;
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

constexpr uint8_t dtype_bit(Dtype dtype) { return 1 << static_cast<int>(dtype); }
inline constexpr uint8_t F32 = dtype_bit(Dtype::kF32), F16 = dtype_bit(Dtype::kF16),
                         BF16 = dtype_bit(Dtype::kBF16), HALF = F16 | BF16, ALL = F32 | HALF;

constexpr uint8_t flavour_bit(Beside beside) { return 1 << static_cast<int>(beside); }
inline constexpr uint8_t general = flavour_bit(Beside::kAny), bare = flavour_bit(Beside::kNothing),
                         bare_cs = flavour_bit(Beside::kNothingCs),
                         rounded = flavour_bit(Beside::kRounded),
                         rounded_cs = flavour_bit(Beside::kRoundedCs),
                         bare_sm = flavour_bit(Beside::kShared);

inline constexpr uint16_t keeps_row = Variant::kKeepsRow, place_anew = Variant::kPlaceAnew,
                          row_first = Variant::kRowFirst, ready = Variant::kReadyWeights,
                          cross = Variant::kCrossFours, factors = Variant::kByFactors,
                          pins = Variant::kPinsAddress, prefetch = Variant::kPrefetches,
                          every = Variant::kEveryVector, unasked = Variant::kWaitsUnasked,
                          clamps = Variant::kClampsTogether, idle = Variant::kIdlePrefetch;

constexpr Fours fours(uint8_t ahead, uint8_t early) { return {ahead, early}; }
constexpr BlocksPerSm pair(uint8_t sm80, uint8_t sm90, uint8_t sm100, uint8_t sm120, uint8_t ptx) {
  return {{sm80, sm90, sm100, sm120, ptx}};
}

#define V(source, stat, affine, sink, access, threads, vectors, blocks, dtypes, flavours, row, \
          weights, group, loads, round, sm80, sm90, sm100, sm120, ptx, ...)                    \
  {source_##source, stat_##stat,                                                               \
   affine_##affine, sink_##sink,                                                               \
   access_##access, {threads, vectors, blocks},                                                \
   dtypes,          flavours,                                                                  \
   row_##row,       weights_##weights,                                                         \
   group,           loads_##loads,                                                             \
   round_##round,   {{sm80, sm90, sm100, sm120, ptx}},                                         \
   __VA_ARGS__},
inline constexpr VariantLine kLines[] = {
#include "cuda/norm/variants_codes.inc"
#include "cuda/norm/variants_store.inc"
#include "cuda/norm/variants_unaligned.inc"
};
#undef V

}  // namespace variant_words

inline constexpr std::span<const VariantLine> kVariantLines = variant_words::kLines;

constexpr ListArch list_arch(const ArchSpec& arch) {
  constexpr std::string_view kNames[kListArchs] = {"sm_80", "sm_90", "sm_100f", "sm_120f",
                                                   "ptx_90"};
  for (int i = 0; i < kListArchs; ++i) {
    if (arch.name == kNames[i]) return static_cast<ListArch>(i);
  }
  return kListArchs;
}

// The policies of one kernel of a line. Some apply to a part of a line's kernels only, as the head
// of the list says.
constexpr uint16_t policies_of(const VariantLine& line, Dtype dtype, Beside beside, ListArch arch) {
  const bool bare =
      beside != Beside::kAny && beside != Beside::kRounded && beside != Beside::kRoundedCs;
  const bool spare = arch == kList90 || arch == kListPtx;
  int policies = line.policies;
  if (!bare) policies &= ~(Variant::kWaitsUnasked | Variant::kClampsTogether);
  if (!spare) policies &= ~(Variant::kByFactors | Variant::kPinsAddress);
  if (dtype != Dtype::kBF16) policies &= ~Variant::kByFactors;
  return static_cast<uint16_t>(policies);
}

constexpr Variant variant_of(const VariantLine& line, Dtype dtype, Beside beside, ListArch arch) {
  return {.key = {dtype, line.source, line.stat, line.affine, line.sink, line.access, beside},
          .tile = line.tile,
          .row = line.row,
          .weights = line.weights,
          .group = line.group,
          .loads = beside == Beside::kNothingCs || beside == Beside::kRoundedCs ? Loads::kStreaming
                                                                                : line.loads,
          .round = line.round,
          .fours_ahead = line.fours.ahead,
          .fours_early = line.fours.early,
          .blocks_per_sm = line.blocks_per_sm.of[arch],
          .pair_blocks_per_sm = line.pair_blocks_per_sm.of[arch],
          .policies = policies_of(line, dtype, beside, arch)};
}

constexpr bool is_listed(const VariantLine& line, Dtype dtype, Source source, ListArch arch) {
  return line.source == source && (line.dtypes & variant_words::dtype_bit(dtype)) != 0 &&
         line.blocks_per_sm.of[arch] != 0;
}

constexpr size_t count_variants(Dtype dtype, Source source, ListArch arch) {
  int count = 0;
  for (const VariantLine& line : kVariantLines) {
    if (is_listed(line, dtype, source, arch)) count += std::popcount(line.flavours);
  }
  return static_cast<size_t>(count);
}

// Calls fn(variant, line) for each kernel of a dtype and source.
template <typename Fn>
constexpr void for_each_variant(Dtype dtype, Source source, ListArch arch, Fn fn) {
  for (size_t i = 0; i < kVariantLines.size(); ++i) {
    const VariantLine& line = kVariantLines[i];
    if (!is_listed(line, dtype, source, arch)) continue;
    for (unsigned left = line.flavours; left != 0; left &= left - 1)
      fn(variant_of(line, dtype, static_cast<Beside>(std::countr_zero(left)), arch), i);
  }
}

// The two words that name a kernel.
struct VariantWords {
  uint64_t order;     // packed(key, tile)
  uint64_t policies;  // Variant::packed_policies()
  uint16_t line;      // of kVariantLines
};

// Those of a dtype and source, sorted by the first word. Each object with kernels expands only its
// own part, without names: its compiler passes over it several times.
template <ListArch kArch, Dtype kDtype, Source kSource>
constexpr auto make_variants() {
  std::array<VariantWords, count_variants(kDtype, kSource, kArch)> part = {};
  size_t count = 0;
  for_each_variant(kDtype, kSource, kArch, [&](const Variant& v, size_t line) {
    part[count++] = {packed(v.key, v.tile), v.packed_policies(), static_cast<uint16_t>(line)};
  });
  std::sort(part.begin(), part.end(),
            [](const VariantWords& a, const VariantWords& b) { return a.order < b.order; });
  return part;
}

template <ListArch kArch, Dtype kDtype, Source kSource>
inline constexpr auto kVariants = make_variants<kArch, kDtype, kSource>();

template <ListArch kArch, Dtype kDtype, Source kSource>
constexpr auto make_norm_part() {
  constexpr auto& variants = kVariants<kArch, kDtype, kSource>;
  std::array<NormEntry, variants.size()> part;
  for (size_t i = 0; i < part.size(); ++i) {
    const Variant v = variant_of(variants[i].order, variants[i].policies);
    part[i] = make_entry(v.key, v.tile);
    part[i].line = variants[i].line;
    part[i].every = v.has(Variant::kEveryVector) || v.key.access != Access::kVector;
    part[i].prefetches = v.has(Variant::kPrefetches) && !v.has(Variant::kIdlePrefetch);
  }
  return part;
}

template <ListArch kArch, Dtype kDtype, Source kSource>
inline constexpr auto kNormPart = make_norm_part<kArch, kDtype, kSource>();

template <size_t... kCount>
constexpr auto joined_parts(const std::array<NormEntry, kCount>&... parts) {
  std::array<NormEntry, (kCount + ...)> table;
  size_t count = 0;
  const auto append = [&](const auto& part) {
    for (const NormEntry& entry : part) table[count++] = entry;
  };
  (append(parts), ...);
  return table;
}

// All parts in the order of packed(), as in kernels.h.
template <ListArch kArch>
constexpr auto make_norm_table() {
  return joined_parts(
      kNormPart<kArch, Dtype::kF32, Source::kPlain>, kNormPart<kArch, Dtype::kF32, Source::kAdd>,
      kNormPart<kArch, Dtype::kF16, Source::kPlain>, kNormPart<kArch, Dtype::kF16, Source::kAdd>,
      kNormPart<kArch, Dtype::kBF16, Source::kPlain>, kNormPart<kArch, Dtype::kBF16, Source::kAdd>);
}

}  // namespace fastnorm::cuda
