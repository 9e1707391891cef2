// The pieces of requests that a thread block works on, one after another. Producer and consumers
// walk the same list.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/block.cuh"
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

__device__ __forceinline__ int tiles_of(int length) {
  return static_cast<int>((static_cast<unsigned>(length) + kMlaTileTokens - 1) / kMlaTileTokens);
}

// How many indices of a request of a sparse call count.
__device__ __forceinline__ int selected_of(const MlaDecodeParams& p, const MlaDecodeSelection& s,
                                           int request) {
  const int topk = static_cast<int>(s.topk);
  if (s.lengths == nullptr) return topk;
  const int64_t outer = request / p.selected_s_q, inner = request % p.selected_s_q;
  return min(max(s.lengths[outer * s.length_outer + inner * s.length_inner], 0), topk);
}

// The slots of a request of a sparse call: those of its first cache, then, from the next tile on,
// those of the second one.
struct Slots {
  int first_end;    // behind the first cache's
  int extra_begin;  // the second cache's first
  int end;

  __device__ __forceinline__ Slots(const MlaDecodeParams& p, int request) {
    first_end = extra_begin = end = selected_of(p, p.selection, request);
    if (p.has_extra == 0) return;
    extra_begin = tiles_of(first_end) * kMlaTileTokens;
    const int selected = selected_of(p, p.extra.selection, request);
    if (selected > 0) end = extra_begin + selected;
  }
};

// Tokens that a request attends to, and slots between them.
__device__ __forceinline__ int length_of(const MlaDecodeParams& p, int request) {
  if (p.sparse != 0) return Slots(p, request).end;
  return max(p.kv_len[request], 0);
}

// What an item is of its request, in one register.
struct Piece {
  int code;

  static __device__ __forceinline__ Piece whole() { return {-1}; }
  // A number in the order of all pieces, of which a kernel behind this one merges some.
  static __device__ __forceinline__ Piece of_many(int number) { return {number}; }
  // The first or the second of two.
  static __device__ __forceinline__ Piece of_pair(int number, bool second) {
    return {kPair + 2 * (second ? number - 1 : number) + (second ? 1 : 0)};
  }
  __device__ __forceinline__ bool is_whole() const { return code < 0; }
  __device__ __forceinline__ bool is_of_pair() const { return code >= kPair; }
  __device__ __forceinline__ bool is_second() const { return (code & 1) != 0; }
  __device__ __forceinline__ int number() const { return code; }
  __device__ __forceinline__ int first_of_pair() const { return (code - kPair) / 2; }

 private:
  static constexpr int kPair = 1 << 30;  // numbers are below 2^29
};

// Tiles [first_tile, end_tile) of a request. What else is known of the request is read again where
// it is needed: a consumer has no registers to keep it.
struct Item {
  int request;
  int first_tile, end_tile;
  int length;  // cached tokens of the request
  Piece piece;
  bool has_rows;    // in this block's m-tile
  int first_limit;  // tokens that the request's first new token may attend to
};

struct Walk {
  int request, tile;
  int piece;

  static __device__ __forceinline__ const MlaDecodePart& part_of(const MlaDecodeParams& p) {
    return p.parts[blockIdx.y];
  }

  __device__ __forceinline__ explicit Walk(const MlaDecodeParams& p) {
    const MlaDecodePart& part = part_of(p);
    request = part.first_request;
    tile = part.first_tile;
    piece = part.first_piece;
  }

  // That of the item next() gave last.
  __device__ __forceinline__ int item_request() const { return tile == 0 ? request - 1 : request; }

  __device__ __forceinline__ Piece piece_of(const MlaDecodeParams& p, int first_tile,
                                            bool is_whole) {
    if (is_whole) return Piece::whole();
    const int number = piece++;
    const bool is_first = request == part_of(p).first_request;
    const bool is_pair = (part_of(p).pairs & (is_first ? kMlaFirstIsPair : kMlaLastIsPair)) != 0;
    return is_pair ? Piece::of_pair(number, first_tile != 0) : Piece::of_many(number);
  }

  // The next item, whether it has rows in this block's m-tile or not. Without a loop, and with the
  // block's number read anew: so the compiler knows that a warp's threads walk together. Else it
  // keeps addresses of tiles in registers of each thread and joins the warp before each wgmma.
  __device__ __forceinline__ bool next(const MlaDecodeParams& p, Item& item) {
    const int last_request = part_of(p).last_request, last_tile = part_of(p).last_tile;
    if (request > last_request || (request == last_request && tile >= last_tile)) return false;
    const int length =
        request == part_of(p).first_request ? part_of(p).first_length : length_of(p, request);
    const int tokens = tokens_of(p, request).count;
    const int tiles = tokens > 0 ? tiles_of(length) : 0;
    int end = request == last_request ? last_tile : tiles;
    if (p.split_tiles != 0 && end - tile > p.split_tiles) end = tile + p.split_tiles;
    item.request = request;
    item.first_tile = tile;
    item.end_tile = end;
    item.length = length;
    item.piece = piece_of(p, tile, tile == 0 && end == tiles);
    item.first_limit = p.causal != 0 ? length - tokens + 1 : length;
    item.has_rows = static_cast<int>(ptx::block_index()) * kMlaTileRows < tokens * p.heads;
    tile = end;
    if (end >= tiles) {
      ++request;
      tile = 0;
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
__device__ __forceinline__ RowBox row_box(const MlaDecodeParams& p, RowAccess access, int request) {
  const int row = static_cast<int>(blockIdx.x) * kMlaTileRows;
  if (access == RowAccess::kRequestRows) return {row, request};
  return {row % p.heads, tokens_of(p, request).first + row / p.heads};
}

}  // namespace fastnorm::cuda::mla
