// How the device sees an MLA decode call's work: tiles, pieces and the plan's records in the workspace. CUDA-free; the device planner
// and its host twin both include it.
#pragma once

#include <cstdint>

namespace fastnorm {

inline constexpr int32_t kMlaTileTokens = 64;  // cached tokens of a tile
inline constexpr int32_t kMlaTileRows =
    64;  // query rows of an m-tile; row r = token * heads + head
inline constexpr int32_t kMlaMaxParts = 256;  // parts of one plan: at most one for each SM

// The cost of a request (of a piece where split_tokens is given) beside its tiles, in tiles.
inline constexpr int32_t kMlaRequestCost = 5;
// What a merge costs beside that; and the tiles of the shortest piece worth one, where a request
// has as many.
inline constexpr int32_t kMlaMergeCost = 3;
inline constexpr int32_t kMlaLeastTiles = 2;
// Lengths of pieces that the planner tries.
inline constexpr int32_t kMlaTriedLengths = 16;

// The pieces that one thread block of each m-tile works on, in order: tiles of requests laid end to end, from (first_request,
// first_tile) to before (last_request, last_tile). With split_tokens they are cut further at its multiples.
struct MlaDecodePart {
  int32_t first_request, first_tile;
  int32_t last_request, last_tile;  // last_tile 0: the last request is not part of it
  int32_t first_piece;              // the number of its first piece of a split request
  int32_t first_length;             // kv_len of the first request; 0 for a part without work
  int32_t unused[2];
};
static_assert(sizeof(MlaDecodePart) == 32);

// A request whose output is merged from pieces. Its pieces have consecutive numbers.
struct MlaDecodeSplit {
  int32_t request;
  int32_t first_piece;
  int32_t pieces;
  int32_t first_unit;  // of the combine kernel's work: units of all splits before it
};
static_assert(sizeof(MlaDecodeSplit) == 16);

// First record of the plan region.
struct MlaDecodePlanHeader {
  int32_t splits;  // valid entries of the list of splits
  int32_t units;   // of the combine kernel, all together
  int32_t pieces;  // of split requests, all together
  int32_t unused;
};
static_assert(sizeof(MlaDecodePlanHeader) == 16);

// Up to this many pieces, a warp merges a row by itself and a unit has eight rows. From there on the warps of a block share the
// pieces of a row; where rows are few, of a quarter of one.
inline constexpr int32_t kMlaFewPieces = 4;
inline constexpr int32_t kMlaFewRows = 32;
constexpr int32_t mla_combine_units(int32_t pieces, int32_t rows) {
  if (pieces <= kMlaFewPieces) return (rows + 7) / 8;
  return rows > kMlaFewRows ? rows : rows * 4;
}

}  // namespace fastnorm
