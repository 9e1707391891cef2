// The pieces of requests that a thread block works on, one after another. Producer and consumers
// walk the same list.
#pragma once

#include <cstdint>

#include "cuda/mla_decode/params.h"

namespace fastnorm::cuda::mla {

// New tokens of a request.
struct Tokens {
  int first, count;
};
__device__ __forceinline__ Tokens tokens_of(const MlaDecodeParams& p, int request) {
  if (p.qo_indptr == nullptr) return {request * p.s_q, p.s_q};
  const int first = p.qo_indptr[request];
  return {first, p.qo_indptr[request + 1] - first};
}

__device__ __forceinline__ int length_of(const MlaDecodeParams& p, int request) {
  return max(p.kv_len[request], 0);
}

__device__ __forceinline__ int tiles_of(int length) {
  return static_cast<int>((static_cast<unsigned>(length) + kMlaTileTokens - 1) / kMlaTileTokens);
}

// Tiles [first_tile, end_tile) of a request.
struct Item {
  int request;
  int first_tile, end_tile;
  int length;       // cached tokens of the request
  int piece;        // of a split request: its number; else -1
  int first_limit;  // tokens that the request's first new token may attend to
  int first_token, rows;
};

struct Walk {
  int request, tile;
  int last_request, last_tile;
  int piece;
  int length;  // of `request`

  __device__ __forceinline__ explicit Walk(const MlaDecodePart& part)
      : request(part.first_request),
        tile(part.first_tile),
        last_request(part.last_request),
        last_tile(part.last_tile),
        piece(part.first_piece),
        length(part.first_length) {}

  __device__ __forceinline__ bool next(const MlaDecodeParams& p, Item& item) {
    if (request > last_request || (request == last_request && tile >= last_tile)) return false;
    const Tokens tokens = tokens_of(p, request);
    const int tiles = tokens.count > 0 ? tiles_of(length) : 0;
    int end = request == last_request ? last_tile : tiles;
    if (p.split_tiles != 0 && end - tile > p.split_tiles) end = tile + p.split_tiles;
    item.request = request;
    item.first_tile = tile;
    item.end_tile = end;
    item.length = length;
    item.piece = tile == 0 && end == tiles ? -1 : piece++;
    item.first_limit = p.causal != 0 ? length - tokens.count + 1 : length;
    item.first_token = tokens.first;
    item.rows = tokens.count * p.heads;
    tile = end;
    if (end >= tiles) {
      ++request;
      tile = 0;
      if (request < last_request || last_tile > 0) {
        if (request <= last_request) length = length_of(p, request);
      }
    }
    return true;
  }
};

// Tokens that a row of the request may attend to.
__device__ __forceinline__ int limit_of(const MlaDecodeParams& p, const Item& item, int row) {
  return p.causal != 0 ? min(item.length, item.first_limit + row / p.heads) : item.length;
}

// Coordinates of an m-tile in the maps of queries and outputs.
struct RowBox {
  int x, y;
};
__device__ __forceinline__ RowBox row_box(const MlaDecodeParams& p, RowAccess access,
                                          const Item& item) {
  const int row = static_cast<int>(blockIdx.x) * kMlaTileRows;
  if (access == RowAccess::kRequestRows) return {row, item.request};
  return {row % p.heads, item.first_token + row / p.heads};
}

}  // namespace fastnorm::cuda::mla
