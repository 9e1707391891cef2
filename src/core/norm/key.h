// What distinguishes kernels: the slots of the row loop, and the tile.
#pragma once

#include <compare>
#include <cstdint>

#include "core/common/dtype.h"
#include "core/common/tile.h"

namespace fastnorm {

inline constexpr int32_t kMaxCalls = 8;  // in one fastnorm_norm_many

enum class Source : uint8_t { kPlain, kAdd };  // which bytes become the f32 row: x, or x + residual
enum class Stat : uint8_t { kRms, kLayer };    // what is reduced over the row
// How weight and bias are applied: t * (weight + offset) + bias.
//   kOnce  rounded once, at the end; both of x's dtype, or absent. RMS has no bias. On CPUs each
//          may be of x's dtype or f32
//   kF32   the same for 16-bit rows with f32 weight and bias; on GPUs only
//   kAny   any dtypes, and any rounding in between
// GPU kernels of every kind round x + residual, and t, if a call asks for it.
enum class Affine : uint8_t { kOnce, kF32, kAny };
// What leaves a kernel.
//   kStore   y
//   kStatic  quantised y with one static scale, and nothing else
//   kQuant   quantised y by any scheme with its scales; the largest magnitude and y on request
enum class Sink : uint8_t { kStore, kStatic, kQuant };
// How rows are reached.
//   kVector     rows of every tensor begin at multiples of 16 bytes, and their lengths are
//               multiples of it; all have x's dtype
//   kUnaligned  rows of any length, at any address; all have x's dtype
//   kAny        any address, and any dtypes
enum class Access : uint8_t { kVector, kUnaligned, kAny };

// What a GPU kernel leaves out, and how a lean one loads. Names have the words in quotes.
//   kGeneral           nothing is left out
//   kLean              "bare": weight (LAYER: and bias) present, nothing rounded in between, only y
//                      or quantised y. Rows have one index; where a block has several rows of one
//                      input, they may have two
//   kLeanStreaming     "bare-cs": kLean with streaming loads, for rows with one index
//   kRounded           "rounded": the row is rounded before its weight, which has no offset, as
//                      Llama's is
//   kRoundedStreaming  "rounded-cs": kRounded with streaming loads
//   kLeanShared        "bare-sm": kLean, whose weight and bias wait in shared memory while the row
//                      is reduced
enum class Flavour : uint8_t {
  kGeneral,
  kLean,
  kLeanStreaming,
  kRounded,
  kRoundedStreaming,
  kLeanShared
};

// The kind of kernel that differs from `flavour` in its loads, which stream.
constexpr Flavour with_streaming_loads(Flavour flavour) {
  return flavour == Flavour::kLean      ? Flavour::kLeanStreaming
         : flavour == Flavour::kRounded ? Flavour::kRoundedStreaming
                                        : flavour;
}

// How the rows of a grid are numbered, which decides the form of the kernel.
enum class GridForm {
  kRows,  // of one call, one after the other
  kPair,  // of one call or two; the second's blocks are spread over the first's: see pair_block()
  // Heads of one call or two: y counts tokens, x the blocks of a token's heads. The second call's
  // blocks follow the first's. No thread divides its row number by the number of heads, but a
  // token's last block may have idle threads.
  kHeads,
};

struct NormKey {
  Dtype dtype = Dtype::kF32;
  Source source = Source::kPlain;
  Stat stat = Stat::kRms;
  Affine affine = Affine::kOnce;
  Sink sink = Sink::kStore;
  Access access = Access::kVector;
  Flavour flavour = Flavour::kGeneral;

  constexpr auto operator<=>(const NormKey&) const = default;

  constexpr uint32_t packed() const {
    return static_cast<uint32_t>(dtype) << 20 | static_cast<uint32_t>(source) << 16 |
           static_cast<uint32_t>(stat) << 12 | static_cast<uint32_t>(affine) << 8 |
           static_cast<uint32_t>(sink) << 6 | static_cast<uint32_t>(flavour) << 3 |
           static_cast<uint32_t>(access);
  }
};

// What takes every call of a dtype.
constexpr NormKey general_key(Dtype dtype, Stat stat = Stat::kRms, Sink sink = Sink::kQuant) {
  return {dtype, Source::kAdd, stat, Affine::kAny, sink, Access::kAny};
}

constexpr NormKey lean_key(NormKey key, Flavour flavour = Flavour::kLean) {
  key.flavour = flavour;
  return key;
}

constexpr uint64_t packed(NormKey key, Tile tile) {
  return uint64_t{key.packed()} << 32 | tile.packed();
}

// The key from which packed() was made.
constexpr NormKey key_of_packed(uint64_t order) {
  const auto bits = static_cast<uint32_t>(order >> 32);
  return {static_cast<Dtype>(bits >> 20),     static_cast<Source>(bits >> 16 & 15),
          static_cast<Stat>(bits >> 12 & 15), static_cast<Affine>(bits >> 8 & 15),
          static_cast<Sink>(bits >> 6 & 3),   static_cast<Access>(bits & 7),
          static_cast<Flavour>(bits >> 3 & 7)};
}
constexpr Tile tile_of_packed(uint64_t order) {
  return {static_cast<int16_t>(order >> 16), static_cast<int8_t>(order >> 8),
          static_cast<int8_t>(order)};
}

// One kernel of a backend's table. make_entry() makes it.
struct NormEntry {
  NormKey key;
  Tile tile;
  uint64_t order = 0;       // packed(key, tile); a search compares it alone
  bool prefetches = false;  // CUDA: faster if later rows are brought into L2
  bool every = false;       // CUDA: supports every row length up to its tile
  uint16_t line = 0;        // CUDA: number of its line in the list of kernels
  char name[56] = "";       // "bf16 add rms store 256x4", unique in its table

  constexpr uint64_t packed() const { return order; }
};

// True if there is also a GPU kernel for two calls in one grid, for query and key heads of a fused
// QKV buffer. A row takes a warp or less.
constexpr bool runs_pairs(NormKey key, Tile tile) {
  return key.source == Source::kPlain && key.sink == Sink::kStore &&
         key.access == Access::kVector && tile.threads <= 32 &&
         key.flavour != Flavour::kLeanStreaming;
}
constexpr bool runs_pairs(const NormEntry& entry) { return runs_pairs(entry.key, entry.tile); }

// True if a kernel that runs pairs knows how many indices rows have, which lean ones do. For a
// pair, rows have two indices; a single index counts as the first of one. For one call, rows have
// one index. A call of rows with two indices runs as a pair without a second call.
constexpr bool knows_indices(NormKey key, Tile tile) {
  return key.flavour != Flavour::kGeneral && runs_pairs(key, tile);
}

// True if there is also such a kernel for grids of heads (GridForm::kHeads). There is none with f32
// weight and bias.
constexpr bool runs_heads(NormKey key, Tile tile) {
  return knows_indices(key, tile) && key.affine == Affine::kOnce;
}

constexpr const char* name_of(Source s) { return s == Source::kPlain ? "plain" : "add"; }
constexpr const char* name_of(Stat s) { return s == Stat::kRms ? "rms" : "layer"; }
constexpr const char* name_of(Affine a) {
  return a == Affine::kOnce ? "once" : a == Affine::kF32 ? "f32" : "any";
}
constexpr const char* name_of(Sink s) {
  return s == Sink::kStore ? "store" : s == Sink::kStatic ? "static" : "quant";
}
constexpr const char* name_of(Access a) {
  return a == Access::kVector ? "vector" : a == Access::kUnaligned ? "unaligned" : "any";
}
constexpr const char* name_of(Flavour b) {
  return b == Flavour::kLean               ? "bare"
         : b == Flavour::kLeanStreaming    ? "bare-cs"
         : b == Flavour::kRounded          ? "rounded"
         : b == Flavour::kRoundedStreaming ? "rounded-cs"
         : b == Flavour::kLeanShared       ? "bare-sm"
                                           : "";
}

// The entry of a key and a tile, with its name.
constexpr NormEntry make_entry(NormKey key, Tile tile) {
  NormEntry entry{key, tile, packed(key, tile)};
  int length = 0;
  const auto put = [&](char c) {
    if (length + 1 < static_cast<int>(sizeof entry.name)) entry.name[length++] = c;
  };
  const auto text = [&](const char* s) {
    while (*s != '\0') put(*s++);
  };
  const auto number = [&](int v) {
    char digits[8] = {};
    int count = 0;
    do digits[count++] = static_cast<char>('0' + v % 10);
    while ((v /= 10) > 0);
    while (count > 0) put(digits[--count]);
  };
  text(dtype_name(key.dtype)), put(' ');
  text(name_of(key.source)), put(' ');
  text(name_of(key.stat)), put(' ');
  text(name_of(key.affine)), put(' ');
  text(name_of(key.sink)), put(' ');
  text(name_of(key.access));
  if (key.flavour != Flavour::kGeneral) put(' '), text(name_of(key.flavour));
  if (tile.threads > 0) {
    put(' '), number(tile.threads), put('x');
    if (tile.vectors > 0) {
      number(tile.vectors);
    } else {
      text("stream");
    }
    if (tile.blocks > 1) put('x'), number(tile.blocks);
  }
  return entry;
}

}  // namespace fastnorm
