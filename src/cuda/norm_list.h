// THE list of the forward kernels that exist. It expands to one constexpr table an architecture, which planning searches, tests
// iterate and norm_arch.cu turns into kernel addresses. CUDA-free.
//
// Budget: about 0.3 s of compile time and 25 kB of code a kernel and architecture.
#pragma once

#include <algorithm>
#include <array>

#include "core/norm_key.h"

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
    {{128, 4}, kAll},
    {{128, 5}, kAll},
    {{128, 6}, kAddRms},
    {{128, 7}, kAddRms},
    {{128, 8}, kAddRms},
    {{256, 2}, kAdd | kLayer},
    {{256, 3}, kAll},
    {{256, 4}, kAll},
    {{256, 5}, kLayer | kAdd},
    {{256, 6}, kLayer | kAdd},
    {{256, 7}, kLayer | kAdd},
    {{256, 8}, kLayer},
    {{512, 3}, kAll},
    {{512, 4}, kAll},
    {{512, 5}, kLayer | kAddLayer},
    {{512, 6}, kLayer | kAddLayer},
    {{512, 7}, kLayer | kAddLayer},
    {{512, 8}, kLayer | kAddLayer},
    {{1024, 2}, kAddRms},
    {{1024, 3}, kRms | kAddRms},
    {{1024, 4}, kRms | kAddRms},
    // A cluster a row: few rows ..
    {{64, 2, 8}, kAll},
    {{128, 2, 4}, kAll},
    {{128, 2, 8}, kAll},
    {{256, 2, 4}, kRms},
    {{256, 3, 2}, kAdd | kLayer},
    {{256, 4, 2}, kAdd | kLayer},
    {{256, 2, 8}, kAll},
    {{128, 3, 4}, kAddRms},
    {{128, 4, 4}, kAddRms},
    {{128, 5, 2}, kAddRms},
    {{128, 6, 2}, kAddRms},
    {{128, 7, 2}, kAddRms},
    {{128, 8, 2}, kAddRms},
    // .. and long ones.
    {{512, 2, 8}, kAll},
    {{512, 3, 4}, kPlain},
    {{512, 4, 4}, kPlain},
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

// Tiles of the kernels that quantise whole vectors or have f32 columns.
inline constexpr Tile kRareTiles[] = {
    {4, 1},   {4, 2},   {16, 1},    {32, 1},     {32, 2},     {32, 3},     {32, 4},  {128, 2},
    {128, 3}, {128, 4}, {256, 3},   {256, 4},    {512, 3},    {512, 4},    {512, 5}, {512, 6},
    {512, 7}, {512, 8}, {64, 2, 8}, {128, 2, 4}, {128, 2, 8}, {256, 2, 8},
};

// Tiles of the kernels for any access, which also stream what no tile holds. LAYER has no registers for {512, 8}.
inline constexpr ListedTile kAnyTiles[] = {
    {{4, 2}, kAll},
    {{32, 1}, kAll},
    {{32, 4}, kAll},
    {{128, 4}, kAll},
    {{256, 4}, kAll},
    {{512, 4}, kAll},
    {{512, 8}, kRms | kAddRms},
    {{256, 0}, kAll},
};

// Tiles of the kernels for rows of any length and address: few, as each serves all rows that it holds.
inline constexpr ListedTile kUnevenTiles[] = {
    {{4, 2}, kAll},   {{16, 1}, kAll},  {{32, 1}, kAll},  {{32, 4}, kAll},
    {{128, 3}, kAll}, {{128, 4}, kAll}, {{128, 5}, kAll}, {{256, 3}, kAll},
    {{256, 4}, kAll}, {{512, 3}, kAll}, {{512, 4}, kAll}, {{512, 8}, kRms},
};

constexpr int user_of(Source source, Stat stat) {
  if (source == Source::kPlain) return stat == Stat::kRms ? kRms : kLayer;
  return stat == Stat::kRms ? kAddRms : kAddLayer;
}

// Calls fn(key, tile) for each kernel of an architecture whose clusters have at most so many blocks.
template <typename Fn>
constexpr void for_each_norm_kernel(int cluster_blocks, Fn fn) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    for (Source source : {Source::kPlain, Source::kAdd}) {
      for (Stat stat : {Stat::kRms, Stat::kLayer}) {
        const int user = user_of(source, stat);
        const auto use_with = [&](Affine affine, Sink sink, Access access, const ListedTile& t) {
          if ((t.use & user) == 0 || t.tile.blocks > cluster_blocks) return;
          fn(NormKey{dtype, source, stat, affine, sink, access}, t.tile);
        };
        const auto use = [&](Sink sink, Access access, const ListedTile& t) {
          use_with(access == Access::kAny ? Affine::kAny : Affine::kOnce, sink, access, t);
        };
        for (const ListedTile& t : kVectorTiles) use(Sink::kStore, Access::kVector, t);
        for (const ListedTile& t : kUnevenTiles) use(Sink::kStore, Access::kUneven, t);
        // Streamed rows: by the largest clusters, too.
        const ListedTile streamed = {{256, 0, static_cast<int8_t>(cluster_blocks)},
                                     cluster_blocks > 1 ? kAll : 0};
        for (const ListedTile& t : kAnyTiles) use(Sink::kStore, Access::kAny, t);
        use(Sink::kStore, Access::kAny, streamed);
        for (const Tile& tile : kRareTiles) {
          if (dtype != Dtype::kF32) {
            use_with(Affine::kF32, Sink::kStore, Access::kVector, {tile, kAll});
            use(Sink::kStatic, Access::kVector, {tile, kAll});
          }
          use(Sink::kQuant, Access::kVector, {tile, kAll});
        }
        for (const ListedTile& t : kAnyTiles) {
          if (t.tile.vectors <= 4) use(Sink::kQuant, Access::kAny, t);
        }
        use(Sink::kQuant, Access::kAny, streamed);
      }
    }
  }
}

constexpr size_t count_norm_kernels(int cluster_blocks) {
  size_t count = 0;
  for_each_norm_kernel(cluster_blocks, [&](NormKey, Tile) { ++count; });
  return count;
}

template <int kClusterBlocks>
constexpr auto make_norm_table() {
  std::array<NormEntry, count_norm_kernels(kClusterBlocks)> table;
  size_t count = 0;
  for_each_norm_kernel(kClusterBlocks,
                       [&](NormKey key, Tile tile) { table[count++] = make_entry(key, tile); });
  std::sort(table.begin(), table.end(),
            [](const NormEntry& a, const NormEntry& b) { return a.packed() < b.packed(); });
  return table;
}

// Sorted by packed(), so the dtypes follow each other as in kRowDtypes order.
template <int kClusterBlocks>
inline constexpr auto kNormTable = make_norm_table<kClusterBlocks>();

template <size_t kCount>
constexpr bool all_different(const std::array<NormEntry, kCount>& table) {
  for (size_t i = 1; i < kCount; ++i) {
    if (table[i - 1].packed() == table[i].packed()) return false;
  }
  return true;
}
static_assert(all_different(kNormTable<16>) && all_different(kNormTable<8>) &&
              all_different(kNormTable<1>));

}  // namespace fastnorm::cuda
