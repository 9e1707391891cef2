// The work of an MLA decode call as the device sees it: tiles, pieces and the plan's records in the
// workspace. Needs no CUDA. The device planner and its twin on the host include it.
#pragma once

#include <cstdint>

namespace fastnorm {

inline constexpr int32_t kMlaLatent = 512;  // columns of ckv, and of o
inline constexpr int32_t kMlaRope = 64;     // columns of kpe

inline constexpr int32_t kMlaTileTokens = 64;  // cached tokens of a tile
// Query rows of an m-tile; row r = token * heads + head.
inline constexpr int32_t kMlaTileRows = 64;
// Those of a kernel for few of them.
inline constexpr int32_t kMlaFewerRows = 16;
inline constexpr int32_t kMlaMaxParts = 256;  // parts of one plan: at most one for each SM

// The cost of a request besides its tiles, in tiles. With split_tokens it is the cost of a piece.
inline constexpr int32_t kMlaRequestCost = 5;
// The extra cost of a merge, in tiles. It is also the least number of tiles that is worth a piece
// of its own.
inline constexpr int32_t kMlaMergeCost = 3;
inline constexpr int32_t kMlaLeastTiles = 2;
// How many lengths of pieces the planner tries.
inline constexpr int32_t kMlaTriedLengths = 16;

// How the query rows of an m-tile, or 64 rows of the cache, get to shared memory and outputs back.
enum class RowAccess : int32_t {
  kRows,         // each row by its own address
  kRequestRows,  // one tensor-map box; the map's coordinates are (row of the request, request)
  kTokenRows,    // one box; the map's coordinates are (head, token)
};

// The pieces that one thread block of each m-tile works on, in order. They are tiles of requests
// laid end to end, from (first_request, first_tile) up to (last_request, last_tile). With
// split_tokens they are also cut at its multiples.
struct MlaDecodePart {
  int32_t first_request, first_tile;
  int32_t last_request, last_tile;  // last_tile 0: the last request is not included
  int32_t first_piece;              // the number of its first piece of a split request
  int32_t first_length;             // kv_len of the first request; 0 for a part without work
  int32_t pairs;                    // kMlaFirstIsPair, kMlaLastIsPair
  int32_t unused;
};
static_assert(sizeof(MlaDecodePart) == 32);

// Whether the request of the part's first or of its last item has two pieces.
inline constexpr int32_t kMlaFirstIsPair = 1, kMlaLastIsPair = 2;

// Two pieces that are all of a request, in one m-tile: the thread block that comes second merges
// them. Each of the two consumers of a block does so for its half of the columns. All is 0 between
// calls.
struct MlaDecodePair {
  int32_t taken[2];    // by blocks that have begun with their piece
  int32_t written[2];  // the first one's outputs are there
};
static_assert(sizeof(MlaDecodePair) == 16);

// A request whose output a kernel of its own merges from pieces. The pieces have consecutive
// numbers. Without split_tokens it has at least three; two are a pair.
struct MlaDecodeSplit {
  int32_t request;
  int32_t first_piece;
  int32_t pieces;
  int32_t first_unit;  // units of the combine kernel in all splits before this one
};
static_assert(sizeof(MlaDecodeSplit) == 16);

// First record of the plan region.
struct MlaDecodePlanHeader {
  int32_t splits;  // valid entries of the list of splits
  int32_t units;   // of the combine kernel in all splits
  int32_t pieces;  // of all split requests
  int32_t unused;
};
static_assert(sizeof(MlaDecodePlanHeader) == 16);

// Up to this many pieces, one warp merges a row, and a unit has eight rows. With more pieces the
// warps of a block share the pieces of a row. If rows are few, they share those of a quarter of a
// row.
inline constexpr int32_t kMlaFewPieces = 4;
inline constexpr int32_t kMlaFewRows = 32;
constexpr int32_t mla_combine_units(int32_t pieces, int32_t rows) {
  if (pieces <= kMlaFewPieces) return (rows + 7) / 8;
  return rows > kMlaFewRows ? rows : rows * 4;
}

}  // namespace fastnorm
