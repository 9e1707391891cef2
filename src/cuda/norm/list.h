// THE list of the forward kernels that exist. It expands to one constexpr table an architecture, which planning searches and tests
// iterate, in parts that instances.cu turns into kernel addresses. CUDA-free.
//
// Budget: about 0.3 s of compile time and 25 kB of code a kernel and architecture.
#pragma once

#include <algorithm>
#include <array>

#include "core/norm_key.h"
#include "core/norm_measured.h"
#include "core/norm_plan.h"

namespace fastnorm::cuda {

// Who needs a tile: see the ladders in core/norm_plan.cpp.
enum TileUse : int {
  kRms = 1,
  kLayer = 2,
  kAddRms = 4,
  kAddLayer = 8,
  kPlain = kRms | kLayer,
  kAdd = kAddRms | kAddLayer,
  kAll = kPlain | kAdd,
  kNoCodes = 16,  // beside the others: not for codes
};

struct ListedTile {
  Tile tile;
  int use;
};

// Tiles of the kernels for whole vectors.
inline constexpr ListedTile kVectorTiles[] = {
    // Short rows: several to a block.
    {{4, 1}, kAll},
    {{4, 2}, kAll},
    {{8, 2}, kPlain},
    {{16, 1}, kAll},
    {{16, 2}, kPlain},
    {{16, 5}, kAdd},
    {{16, 6}, kAdd},
    {{16, 7}, kAdd},
    {{16, 8}, kAdd},
    {{32, 1}, kAll},
    {{32, 2}, kAll},
    {{32, 3}, kPlain},
    {{32, 4}, kPlain},
    {{32, 5}, kAddRms},
    {{32, 6}, kAddRms},
    {{32, 7}, kAddRms},
    {{32, 8}, kAddRms},
    {{64, 2}, kAll},
    {{64, 3}, kLayer},
    {{64, 4}, kLayer},
    {{64, 5}, kAddRms},
    {{64, 6}, kAddRms},
    {{64, 7}, kAddRms},
    {{64, 8}, kAddRms},
    // A block a row.
    {{128, 1}, kAll},
    {{128, 2}, kAll},
    {{128, 3}, kAll},
    {{128, 4}, kPlain | kAddRms},
    {{128, 5}, kPlain | kAddRms},
    {{128, 6}, kAddRms},
    {{128, 7}, kAddRms},
    {{128, 8}, kAddRms},
    {{256, 2}, kAll},
    {{256, 3}, kAll},
    {{256, 4}, kAll},
    {{256, 5}, kPlain | kAddLayer},
    {{256, 6}, kPlain | kAddLayer},
    {{256, 7}, kAll},
    {{256, 8}, kPlain},
    {{512, 3}, kAll},
    {{512, 4}, kAll},
    {{512, 5}, kPlain | kAddLayer},
    {{512, 6}, kPlain | kAddLayer},
    {{512, 7}, kPlain | kAddLayer},
    {{512, 8}, kPlain | kAddLayer},
    {{1024, 2}, kAddRms},
    {{1024, 3}, kAddRms},
    {{1024, 4}, kRms | kAddRms},
    // A cluster a row: few rows ..
    {{64, 2, 8}, kAll},
    {{128, 2, 4}, kAll},
    {{128, 2, 8}, kAll},
    {{256, 2, 4}, kRms},
    {{256, 3, 2}, kAdd | kLayer},
    {{256, 4, 2}, kAdd | kLayer},
    {{256, 2, 8}, kAll},
    {{512, 3, 2}, kPlain},
    {{512, 4, 2}, kPlain},
    {{128, 3, 4}, kAddRms},
    {{128, 4, 4}, kAddRms},
    {{128, 5, 2}, kAddRms},
    {{128, 6, 2}, kAddRms},
    {{128, 7, 2}, kAddRms},
    {{128, 8, 2}, kAddRms},
    // .. and long ones, of which many are held as they were loaded: see long_row_tile().
    {{256, 5, 4}, kPlain},
    {{256, 6, 4}, kPlain},
    {{256, 7, 4}, kPlain},
    {{256, 8, 4}, kPlain},
    {{256, 5, 8}, kPlain},
    {{256, 6, 8}, kPlain},
    {{256, 7, 8}, kPlain},
    {{256, 8, 8}, kPlain},
    {{256, 5, 16}, kPlain},
    {{256, 6, 16}, kPlain},
    {{256, 7, 16}, kPlain},
    {{256, 8, 16}, kPlain},
    {{512, 2, 8}, kAll},
    {{512, 3, 8}, kAll},
    {{512, 4, 8}, kAll},
    {{512, 5, 8}, kAdd},
    {{512, 6, 8}, kAdd},
    {{512, 7, 8}, kAdd},
    {{512, 3, 16}, kPlain},
    {{512, 4, 16}, kAll},
    {{512, 5, 16}, kAll},
    {{512, 6, 16}, kAll},
    {{512, 7, 16}, kAll},
    {{512, 8, 16}, kPlain},
    {{1024, 5, 16}, kPlain},
    {{1024, 6, 16}, kPlain},
    {{1024, 7, 16}, kPlain},
    {{1024, 8, 16}, kPlain},
};

// True for kernels of which there may be a bare one, too: all of 16-bit rows in whole vectors, but for long rows in clusters, f32 columns
// of RMS and of sums, a residual's LayerNorm to codes, short rows to codes with scales, and what is slower so (sums 4096 x 1024 9.75 us for
// 9.60, x 24576 195.1 for 193.6, LayerNorm of sums 4096 x 32768 288.5 for 284.7) or gains less than 1 % (sums of many rows to codes with
// scales). H200, bf16, 2026-11-24, in us, without and with: RMSNorm 1 x 512 1.53 and 1.45, 4096 x 1536 8.10 and 7.89, 4096 x 32768 132.2 and
// 130.5, to e4m3 by a given scale 64 x 2880 2.24 and 2.11; sums 1 x 1024 1.65 and 1.50, to e4m3 4096 x 1024 9.51 and 9.35; LayerNorm
// 65536 x 512 34.6 and 33.8, to e4m3 4096 x 32768 119.0 and 109.5.
constexpr bool may_have_bare(NormKey key, Tile tile) {
  if (key.access == Access::kUneven) {
    const bool add = key.source == Source::kAdd, layer = key.stat == Stat::kLayer;
    return key.dtype != Dtype::kF32 && key.sink == Sink::kStore && tile.blocks == 1 &&
           !(add && layer) && (key.affine == Affine::kOnce || layer);
  }
  const bool add = key.source == Source::kAdd, layer = key.stat == Stat::kLayer,
             store = key.sink == Sink::kStore;
  if (key.dtype == Dtype::kF32 || key.access != Access::kVector || (add && layer && !store) ||
      (tile.blocks > 1 && (tile.threads > 256 || tile.vectors > 4))) {
    return false;
  }
  if (key.affine == Affine::kF32)
    return layer && !add && tile != Tile{64, 3} && tile != Tile{64, 4} &&
           !(tile.threads == 512 && tile.vectors >= 7);
  if (key.affine != Affine::kOnce) return false;
  if (key.sink == Sink::kQuant) {
    if (tile.blocks > 1) return !layer;
    if (add) return (tile.threads == 128 || tile.threads == 256) && tile.vectors <= 4;
    if (tile == Tile{128, 2}) return !layer;
    return tile.vectors >= (tile.threads == 512 ? 5 : 3);
  }
  if (!add || !store) return true;
  return tile != Tile{16, 8} && tile != Tile{1024, 3} && !(layer && tile == Tile{512, 8});
}

// Those with it, but for tiles of rows that are all read past L1; and those with one for such rows: RMSNorm of a few hundred.
constexpr bool has_bare(NormKey key, Tile tile) {
  const bool all_past_l1 =
      key.source == Source::kAdd
          ? (tile.threads == 128 && tile.vectors >= 4) || (tile.threads == 64 && tile.vectors >= 5)
          : tile.threads == 256 && (tile.vectors == 6 || tile.vectors == 8);
  const bool y = key.stat == Stat::kRms && key.sink == Sink::kStore && tile.blocks == 1 &&
                 key.access == Access::kVector;
  return may_have_bare(key, tile) && !(y && all_past_l1);
}
constexpr bool has_bare_cs(NormKey key, Tile tile) {
  // Several rows a block: others ask, or have rows of more than 6 MB, which never are.
  if (rows_per_block(tile) > 1) {
    if (tile.vectors > 2 || tile == Tile{8, 2} || tile == Tile{16, 2}) return false;
    return may_have_bare(key, tile) && key.access == Access::kVector && key.stat == Stat::kRms &&
           key.source == Source::kPlain && key.sink == Sink::kStore && key.affine == Affine::kOnce;
  }
  // Rows that are never read past L1.
  const bool long_codes =
      key.sink == Sink::kStatic &&
      (tile == Tile{64, 4} || tile == Tile{128, 5} || (tile.threads == 256 && tile.vectors >= 5));
  if (tile == Tile{64, 2} || long_codes || (tile == Tile{256, 7} && key.source == Source::kAdd))
    return false;
  return may_have_bare(key, tile) && key.access == Access::kVector && key.stat == Stat::kRms &&
         tile.threads >= 64 && tile.threads < 512 && tile.blocks == 1 && key.sink != Sink::kQuant;
}
// Those for Llama's form: RMSNorm to y, with most tiles of bare kernels (with the others it is within 1 % of the general ones) and one that
// is slower bare. H200, bf16, 4096 rows, with and without them: RMSNorm x 1024 5.48 and 5.59 us, x 16384 65.6 and 66.3, x 32768 130.6 and
// 135.7; sums x 1024 9.56 and 9.79.
constexpr bool has_rounded(NormKey key, Tile tile) {
  if (key.dtype == Dtype::kF32 || key.access != Access::kVector || key.stat != Stat::kRms ||
      key.affine != Affine::kOnce || key.sink != Sink::kStore) {
    return false;
  }
  if (key.source == Source::kAdd && tile == Tile{16, 8}) return true;
  const bool few = tile.threads == 128 || tile.threads == 256,
             many = key.source == Source::kPlain &&
                    (tile == Tile{512, 3} || tile == Tile{512, 4} || tile == Tile{1024, 4});
  return has_bare(key, tile) &&
         (tile.threads <= 32 || tile.blocks > 1 || many || (few && tile.vectors <= 4));
}
constexpr bool has_rounded_cs(NormKey key, Tile tile) {
  return key.sink == Sink::kStore && has_bare_cs(key, tile) && rows_per_block(tile) == 1 &&
         (tile.vectors <= 4 || key.source == Source::kAdd);
}

// Who needs a tile of the kernels that have f32 columns or quantise whole vectors.
enum RareUse : int {
  kColumns = 1,       // f32 columns
  kLayerColumns = 2,  // of LAYER
  kSumColumns = 4,    // with a residual
  kCodes = 8,         // codes
  kWideCodes = 16,    // of LAYER by a given scale, or by scales from the values
  kSumCodes = 32,     // with a residual
  kRmsCodes = 64,     // of RMS by a given scale
  kScales = 128,      // by scales from the values
  kRmsScales = 256,   // of RMS of 16 bits
  kRare = kColumns | kSumColumns | kCodes | kSumCodes,
};

inline constexpr ListedTile kRareTiles[] = {
    {{4, 1}, kRare},
    {{4, 2}, kRare},
    {{16, 1}, kRare},
    {{32, 1}, kRare},
    {{32, 2}, kRare},
    {{32, 3}, kSumColumns | kCodes | kSumCodes},
    {{32, 4}, kSumColumns | kCodes | kSumCodes},
    {{64, 2}, kColumns},
    {{64, 3}, kColumns | kCodes},
    {{64, 4}, kColumns | kRmsCodes | kScales},
    {{64, 5}, kScales},
    {{64, 6}, kScales},
    {{128, 2}, kRare},
    {{128, 3}, kRare},
    {{128, 4}, kRare},
    {{128, 5}, kColumns | kRmsCodes | kScales},
    {{128, 6}, kScales},
    {{128, 7}, kScales},
    {{128, 8}, kRmsScales},
    {{256, 2}, kColumns},
    {{256, 3}, kRare},
    {{256, 4}, kRare},
    {{256, 5}, kColumns | kWideCodes | kRmsCodes},
    {{256, 6}, kColumns | kWideCodes},
    {{256, 7}, kColumns | kWideCodes | kRmsCodes},
    {{256, 8}, kColumns | kWideCodes | kRmsCodes},
    {{512, 3}, kSumColumns | kCodes | kSumCodes},
    {{512, 4}, kSumColumns | kCodes | kSumCodes},
    {{512, 5}, kRare},
    {{512, 6}, kRare},
    {{512, 7}, kRare},
    {{512, 8}, kRare},
    {{64, 2, 4}, kLayerColumns},
    {{64, 2, 8}, kRare},
    {{128, 2, 4}, kRare},
    {{128, 2, 8}, kRare},
    {{256, 2, 8}, kRare},
    {{256, 3, 2}, kColumns},
    {{256, 4, 2}, kColumns},
    {{256, 5, 4}, kColumns},
    {{256, 6, 4}, kColumns},
    {{256, 7, 4}, kColumns},
    {{256, 8, 4}, kColumns},
    {{256, 5, 8}, kColumns},
    {{256, 6, 8}, kColumns},
    {{256, 7, 8}, kColumns},
    {{256, 8, 8}, kColumns},
    {{256, 5, 16}, kColumns},
    {{256, 6, 16}, kColumns},
    {{256, 7, 16}, kColumns},
    {{256, 8, 16}, kColumns},
    {{512, 3, 2}, kColumns},
    {{512, 4, 2}, kColumns},
    {{512, 2, 8}, kColumns},
    {{512, 3, 8}, kColumns},
    {{512, 4, 8}, kColumns},
    {{512, 3, 16}, kColumns},
    {{512, 4, 16}, kColumns},
};

// Tiles of the kernels that keep their columns: see kept_tile() in core/norm_plan.cpp.
inline constexpr ListedTile kKeptTiles[] = {
    {{32, 3}, kLayer | kNoCodes},
    {{32, 4}, kLayer},
    {{64, 3}, kLayer | kNoCodes},
    {{64, 4}, kLayer},
    {{128, 3}, kLayer | kNoCodes},
    {{128, 4}, kLayer},
    {{128, 5}, kLayer},
    {{256, 4}, kLayer},
};

// Tiles of the kernels for any access, which also stream what no tile holds: few, as each costs as much as several others. LAYER has no
// registers for {512, 8}.
inline constexpr ListedTile kAnyTiles[] = {
    {{4, 4}, kAll | kNoCodes},  {{32, 1}, kAll | kNoCodes},  {{32, 4}, kAll},
    {{64, 4}, kAdd | kNoCodes}, {{128, 4}, kAll | kNoCodes}, {{256, 4}, kAll | kNoCodes},
    {{512, 4}, kAll},           {{512, 8}, kRms | kAddRms},  {{256, 0}, kAll},
};

// Tiles of the kernels for rows of any length and address.
inline constexpr ListedTile kUnevenTiles[] = {
    {{4, 1}, kAll},
    {{4, 2}, kAll},
    {{8, 2}, kPlain},
    {{16, 1}, kAdd},
    {{16, 2}, kAll},
    {{16, 3}, kAll},
    {{16, 4}, kAll},
    {{32, 3}, kAll},
    {{32, 4}, kAll},
    {{64, 3}, kAll},
    {{64, 4}, kAll},
    {{128, 3}, kAll},
    {{128, 4}, kAll},
    {{128, 5}, kAll},
    {{256, 3}, kAll},
    {{256, 4}, kAll},
    {{512, 3}, kAll},
    {{512, 4}, kPlain | kAddRms},
    {{512, 5}, kPlain},
    {{512, 6}, kPlain},
    {{512, 7}, kPlain},
    {{512, 8}, kPlain},
    // A cluster a row.
    {{256, 1, 8}, kAddLayer},
    {{256, 2, 8}, kAdd},
    {{256, 3, 8}, kAll},
    {{256, 4, 8}, kAll},
    {{512, 3, 8}, kAll},
    {{512, 4, 8}, kAll},
    {{512, 3, 16}, kAll},
    {{512, 4, 16}, kAll},
};

// Of bare ones for few rows: see kFewUnevenTiles in core/norm_plan.cpp.
inline constexpr ListedTile kFewUnevenTiles[] = {
    {{16, 1}, kPlain}, {{32, 1}, kAll},  {{32, 2}, kAll},
    {{128, 1}, kAll},  {{128, 2}, kAll}, {{256, 2}, kAll},
};

// Tiles of bare kernels alone, for kinds of calls: those that norm_measured.h asks for beyond the others, and bare kernels of others' tiles
// that gain 3 to 13 % by it (RMSNorm by a scale a row 64 x 12288 3.93 us -> 3.54, LayerNorm 128 x 16384 5.98 -> 5.39; H200, bf16,
// 2026-11-25).
struct BareTile {
  Tile tile;
  int kinds;  // kind_bit() of each
};

constexpr int kind_bit(CallKind kind) { return 1 << static_cast<int>(kind); }

inline constexpr int kRmsY = kind_bit(CallKind::kRms), kLayerY = kind_bit(CallKind::kLayer),
                     kLayerF32Y = kind_bit(CallKind::kLayerF32), kSumY = kind_bit(CallKind::kSum),
                     kRmsGiven = kind_bit(CallKind::kRmsGiven),
                     kLayerGiven = kind_bit(CallKind::kLayerGiven),
                     kSumGiven = kind_bit(CallKind::kSumGiven),
                     kScalesOfRms = kind_bit(CallKind::kRmsScales),
                     kScalesOfLayer = kind_bit(CallKind::kLayerScales),
                     kScalesOfSum = kind_bit(CallKind::kSumScales),
                     kUnevenRmsY = kind_bit(CallKind::kUnevenRms),
                     kUnevenLayerY = kind_bit(CallKind::kUnevenLayer);

inline constexpr BareTile kBareTiles[] = {
    {{64, 2}, kRmsGiven},
    {{128, 8}, kScalesOfSum},
    {{256, 2}, kLayerGiven | kScalesOfRms | kScalesOfLayer},
    {{256, 5}, kScalesOfSum},
    {{256, 6}, kScalesOfSum},
    {{256, 7}, kScalesOfSum},
    {{256, 8}, kScalesOfSum},
    {{512, 2}, kRmsGiven},
    {{512, 3}, kLayerF32Y | kScalesOfRms | kScalesOfLayer | kScalesOfSum},
    {{512, 4}, kLayerF32Y | kScalesOfRms | kScalesOfLayer | kScalesOfSum},
    {{64, 2, 8}, kScalesOfLayer},
    {{128, 2, 4}, kScalesOfLayer},
    {{128, 2, 8}, kScalesOfLayer},
    {{256, 2, 8}, kScalesOfLayer},
    {{256, 2, 4}, kSumGiven},
    {{128, 3, 2}, kRmsGiven},
    {{128, 3, 4},
     kLayerY | kLayerF32Y | kRmsGiven | kLayerGiven | kSumGiven | kScalesOfRms | kScalesOfLayer |
         kScalesOfSum},
    {{128, 4, 4}, kRmsGiven | kLayerGiven | kScalesOfLayer | kScalesOfSum},
    {{128, 3, 8},
     kRmsY | kLayerY | kLayerF32Y | kSumY | kRmsGiven | kLayerGiven | kSumGiven | kScalesOfRms |
         kScalesOfLayer | kScalesOfSum},
    {{128, 4, 8},
     kLayerF32Y | kRmsGiven | kLayerGiven | kSumGiven | kScalesOfRms | kScalesOfLayer |
         kScalesOfSum},
    {{256, 5, 2}, kScalesOfLayer},
    {{256, 6, 2}, kLayerY},
    {{256, 7, 2}, kLayerY | kLayerF32Y},
    {{256, 8, 2}, kLayerY | kLayerF32Y | kLayerGiven},
    {{512, 3, 2}, kRmsY | kLayerY | kLayerF32Y},
    {{512, 4, 2}, kLayerF32Y | kScalesOfLayer},
};

// Bare kernels of others' tiles that no call runs on where norm_measured.h rules.
inline constexpr BareTile kSupersededTiles[] = {
    {{64, 5}, kScalesOfLayer},
    {{64, 6}, kScalesOfLayer},
    {{128, 5}, kLayerY | kScalesOfRms | kScalesOfLayer},
    {{128, 6}, kScalesOfLayer},
    {{256, 5}, kLayerGiven | kScalesOfLayer},
    {{256, 7}, kRmsGiven},
    {{64, 2, 4}, kLayerF32Y},
    {{64, 2, 8}, kRmsY | kLayerY | kRmsGiven | kLayerGiven},
    {{256, 3, 2}, kLayerY | kLayerF32Y},
    {{256, 4, 2}, kLayerY},
    {{512, 3}, kUnevenRmsY | kUnevenLayerY},
};

// Of those with codes, with columns of x's dtype and with f32 ones.
inline constexpr ListedTile kUnevenCodesTiles[] = {
    {{16, 1}, kAll},  {{16, 2}, kAll},  {{32, 2}, kAll},  {{32, 3}, kAll},  {{32, 4}, kAll},
    {{128, 2}, kAll}, {{128, 3}, kAll}, {{128, 4}, kAll}, {{128, 5}, kAll}, {{256, 3}, kAll},
    {{256, 4}, kAll}, {{512, 3}, kAll}, {{512, 4}, kAll},
};

constexpr int user_of(Source source, Stat stat) {
  if (source == Source::kPlain) return stat == Stat::kRms ? kRms : kLayer;
  return stat == Stat::kRms ? kAddRms : kAddLayer;
}

constexpr int columns_user_of(Source source, Stat stat) {
  if (source == Source::kAdd) return kSumColumns;
  return stat == Stat::kLayer ? kColumns | kLayerColumns : kColumns;
}

constexpr int codes_user_of(Dtype dtype, Source source, Stat stat, Sink sink) {
  if (source == Source::kAdd) return kSumCodes;
  if (stat == Stat::kRms && sink == Sink::kStatic) return kCodes | kRmsCodes;
  if (stat == Stat::kRms && dtype != Dtype::kF32) return kCodes | kWideCodes | kScales | kRmsScales;
  return sink == Sink::kQuant ? kCodes | kWideCodes | kScales : kCodes | kWideCodes;
}

// What of an architecture its list depends on.
struct TableShape {
  int cluster_blocks;  // at most
  bool wide;           // Access::kWide
  bool full_list;      // see ArchSpec
  bool measured;       // likewise
  constexpr bool operator==(const TableShape&) const = default;
};

constexpr TableShape table_shape(const ArchSpec& arch) {
  return {arch.max_cluster_blocks, arch.access_bytes == 32, arch.full_list, arch.measured};
}

constexpr bool is_superseded(NormKey key, Tile tile) {
  const CallKind kind = call_kind(key);
  for (const BareTile& t : kSupersededTiles) {
    if (t.tile == tile && kind != CallKind::kOther && (t.kinds & kind_bit(kind)) != 0) return true;
  }
  return false;
}

// Calls fn(tile) for each tile of one sort of bare kernels that calls of a kind run on.
template <typename Fn>
constexpr void for_each_rung_tile(std::span<const MeasuredRung> rungs, Beside beside, Fn fn) {
  const auto has = [beside](const MeasuredRung& rung, Tile tile) {
    const int threads = tile.threads_per_row();
    return rung.beside == beside && rung.threads == tile.threads && rung.blocks == tile.blocks &&
           threads * tile.vectors > rung.above && threads * (tile.vectors - 1) < rung.most;
  };
  for (size_t i = 0; i < rungs.size(); ++i) {
    for (int8_t vectors = 1; vectors <= 8; ++vectors) {
      const Tile tile = {rungs[i].threads, vectors, rungs[i].blocks};
      bool first = has(rungs[i], tile);
      for (size_t before = 0; before < i; ++before) first = first && !has(rungs[before], tile);
      if (first) fn(tile);
    }
  }
}

// True if there are general kernels of a tile for uneven rows.
constexpr bool has_uneven_tile(Tile tile) {
  for (const ListedTile& t : kUnevenTiles) {
    if (t.tile == tile) return true;
  }
  for (const ListedTile& t : kFewUnevenTiles) {
    if (t.tile == tile) return true;
  }
  return false;
}

// Calls fn(key, tile) for each kernel of a dtype and source.
template <typename Fn>
constexpr void for_each_norm_kernel(Dtype dtype, Source source, TableShape shape, Fn fn) {
  for (Stat stat : {Stat::kRms, Stat::kLayer}) {
    const int user = user_of(source, stat);
    const auto use_with = [&](Affine affine, Sink sink, Access access, const ListedTile& t) {
      if ((t.use & user) == 0 || t.tile.blocks > shape.cluster_blocks) return;
      const NormKey key = {dtype, source, stat, affine, sink, access};
      fn(key, t.tile);
      const bool corner =
          affine == Affine::kOnce && sink == Sink::kStore && access == Access::kVector;
      if (has_bare(key, t.tile) && (shape.full_list || corner) &&
          !(shape.measured && is_superseded(key, t.tile))) {
        fn(bare_key(key), t.tile);
      }
      if (!shape.full_list) return;
      if (has_bare_cs(key, t.tile)) fn(bare_key(key, Beside::kNothingCs), t.tile);
      if (has_rounded(key, t.tile)) fn(bare_key(key, Beside::kRounded), t.tile);
      if (has_rounded_cs(key, t.tile)) fn(bare_key(key, Beside::kRoundedCs), t.tile);
    };
    const auto use = [&](Sink sink, Access access, const ListedTile& t) {
      use_with(access == Access::kAny ? Affine::kAny : Affine::kOnce, sink, access, t);
    };
    for (const ListedTile& t : kVectorTiles) {
      use(Sink::kStore, Access::kVector, t);
      if (shape.wide && holds_wide_rows(t.tile)) use(Sink::kStore, Access::kWide, t);
    }
    for (const ListedTile& t : kUnevenTiles) {
      use(Sink::kStore, Access::kUneven, t);
      if (dtype != Dtype::kF32 && source == Source::kPlain)
        use_with(Affine::kF32, Sink::kStore, Access::kUneven, t);
    }
    for (const ListedTile& t : kFewUnevenTiles) {
      for (const Affine affine : {Affine::kOnce, Affine::kF32}) {
        const NormKey key = {dtype, source, stat, affine, Sink::kStore, Access::kUneven};
        if ((t.use & user) != 0 && has_bare(key, t.tile) && shape.full_list &&
            !(affine == Affine::kF32 && source == Source::kAdd)) {
          fn(bare_key(key), t.tile);
        }
      }
    }
    for (const ListedTile& t : kUnevenCodesTiles) {
      if (dtype == Dtype::kF32 || (source == Source::kAdd && stat == Stat::kLayer)) break;
      use_with(Affine::kOnce, Sink::kQuant, Access::kUneven, t);
      if (source == Source::kPlain && shape.full_list)
        use_with(Affine::kF32, Sink::kQuant, Access::kUneven, t);
    }
    for (const ListedTile& t : kKeptTiles) {
      if (dtype == Dtype::kF32) break;
      use_with(Affine::kKept, Sink::kStore, Access::kVector, t);
      if ((t.use & kNoCodes) == 0) use_with(Affine::kKept, Sink::kStatic, Access::kVector, t);
    }
    // Streamed rows: by the largest clusters, too.
    const ListedTile streamed = {{256, 0, static_cast<int8_t>(shape.cluster_blocks)},
                                 shape.cluster_blocks > 1 ? kAll : 0};
    for (const ListedTile& t : kAnyTiles) use(Sink::kStore, Access::kAny, t);
    use(Sink::kStore, Access::kAny, streamed);
    for (const ListedTile& t : kRareTiles) {
      const auto use_by = [&](int who, Affine affine, Sink sink) {
        if ((t.use & who) == 0) return;
        use_with(affine, sink, Access::kVector, {t.tile, kAll});
        if (sink == Sink::kStatic && shape.wide && holds_wide_rows(t.tile))
          use_with(affine, sink, Access::kWide, {t.tile, kAll});
      };
      if (dtype != Dtype::kF32) {
        use_by(columns_user_of(source, stat), Affine::kF32, Sink::kStore);
        use_by(codes_user_of(dtype, source, stat, Sink::kStatic), Affine::kOnce, Sink::kStatic);
      }
      use_by(codes_user_of(dtype, source, stat, Sink::kQuant), Affine::kOnce, Sink::kQuant);
    }
    for (const BareTile& t : kBareTiles) {
      for (const Sink sink : {Sink::kStore, Sink::kStatic, Sink::kQuant}) {
        for (const Affine affine : {Affine::kOnce, Affine::kF32}) {
          const NormKey key = {dtype, source, stat, affine, sink, Access::kVector};
          const CallKind kind = call_kind(key);
          if (kind != CallKind::kOther && (t.kinds & kind_bit(kind)) != 0 && shape.measured)
            fn(bare_key(key), t.tile);
        }
      }
    }
    for (const Sink sink : {Sink::kStore, Sink::kStatic, Sink::kQuant}) {
      const NormKey key = {dtype, source, stat, Affine::kOnce, sink, Access::kVector};
      if (shape.measured)
        for_each_rung_tile(measured_rungs(call_kind(key)), Beside::kShared,
                           [&](Tile tile) { fn(bare_key(key, Beside::kShared), tile); });
    }
    for (const Affine affine : {Affine::kOnce, Affine::kF32}) {
      const NormKey key = {dtype, source, stat, affine, Sink::kStore, Access::kUneven};
      const CallKind kind = call_kind(key);
      if (!shape.measured || (affine == Affine::kF32 && source == Source::kAdd)) break;
      for_each_rung_tile(measured_rungs(kind), Beside::kNothing, [&](Tile tile) {
        if (!has_uneven_tile(tile)) fn(bare_key(key), tile);
      });
      for_each_rung_tile(measured_rungs(half_kind(kind)), Beside::kHalves,
                         [&](Tile tile) { fn(bare_key(key, Beside::kHalves), tile); });
    }
    for (const ListedTile& t : kAnyTiles) {
      if (t.tile.vectors <= 4 && (t.use & kNoCodes) == 0) use(Sink::kQuant, Access::kAny, t);
    }
    use(Sink::kQuant, Access::kAny, streamed);
  }
}

constexpr size_t count_norm_kernels(Dtype dtype, Source source, TableShape shape) {
  size_t count = 0;
  for_each_norm_kernel(dtype, source, shape, [&](NormKey, Tile) { ++count; });
  return count;
}

// packed() of each, sorted. An object with kernels makes its own part alone, without names: its compiler goes through it several times.
template <TableShape kShape, Dtype kDtype, Source kSource>
constexpr auto make_norm_orders() {
  std::array<uint64_t, count_norm_kernels(kDtype, kSource, kShape)> orders = {};
  size_t count = 0;
  for_each_norm_kernel(kDtype, kSource, kShape,
                       [&](NormKey key, Tile tile) { orders[count++] = packed(key, tile); });
  std::sort(orders.begin(), orders.end());
  return orders;
}

template <TableShape kShape, Dtype kDtype, Source kSource>
inline constexpr auto kNormOrders = make_norm_orders<kShape, kDtype, kSource>();

template <TableShape kShape, Dtype kDtype, Source kSource>
constexpr auto make_norm_part() {
  constexpr auto& orders = kNormOrders<kShape, kDtype, kSource>;
  std::array<NormEntry, orders.size()> part;
  for (size_t i = 0; i < part.size(); ++i)
    part[i] = make_entry(key_of_packed(orders[i]), tile_of_packed(orders[i]));
  return part;
}

template <TableShape kShape, Dtype kDtype, Source kSource>
inline constexpr auto kNormPart = make_norm_part<kShape, kDtype, kSource>();

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

// All parts in the order of packed(), which is that of kernels.h.
template <TableShape kShape>
constexpr auto make_norm_table() {
  return joined_parts(
      kNormPart<kShape, Dtype::kF32, Source::kPlain>, kNormPart<kShape, Dtype::kF32, Source::kAdd>,
      kNormPart<kShape, Dtype::kF16, Source::kPlain>, kNormPart<kShape, Dtype::kF16, Source::kAdd>,
      kNormPart<kShape, Dtype::kBF16, Source::kPlain>,
      kNormPart<kShape, Dtype::kBF16, Source::kAdd>);
}

}  // namespace fastnorm::cuda
