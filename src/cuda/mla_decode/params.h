// What the MLA decode kernels get: one struct by value. CUDA-free.
#pragma once

#include <cstdint>

#include "core/mla_decode/desc.h"
#include "core/mla_decode/profile.h"
#include "core/mla_decode/work.h"

namespace fastnorm::cuda {

// A tensor of [tokens, heads, columns]; strides in bytes.
struct TokenRows {
  char* data;
  int64_t token_stride, head_stride;
};

// A tensor of [pages, page_size, columns]; strides in bytes.
struct PageRows {
  const char* data;
  int64_t page_stride, row_stride;
};

// Tokens of a page, and what divides by it: n / size = n * factor >> shift for 0 <= n < 2^31.
struct PageSize {
  int32_t size;
  uint32_t factor;
  int32_t shift;
};

// The second cache of a sparse call.
struct MlaExtraRows {
  PageRows ckv, kpe;
  MlaDecodeSelection selection;
  PageSize page;
};

struct MlaDecodeParams {
  TokenRows q_nope, q_pe, o;  // [N, H, 512], [N, H, 64], [N, H, 512]
  PageRows ckv, kpe;      // [pages, page, 512], [pages, page, 64]; FP8 formats: the bytes are ckv
  const int32_t* kv_len;  // [B]
  const int32_t* page_table;                  // [B, table_stride], or [total] with kv_indptr
  const int32_t* kv_indptr;                   // [B + 1], may be nullptr
  const int32_t* qo_indptr;                   // [B + 1], may be nullptr
  float* lse;                                 // [N, H], may be nullptr
  int64_t lse_token_stride, lse_head_stride;  // elements
  int64_t table_stride;                       // elements
  const float* cache_scale;                   // of a tensor of codes; nullptr = 1
  const float* sink;                          // [H], may be nullptr

  // In a sparse call each new token is a request of its own.
  int32_t sparse, has_extra;
  int32_t selected_s_q;  // new tokens of a request as the caller has them
  MlaDecodeSelection selection;
  MlaExtraRows extra;

  // In the workspace.
  MlaDecodePlanHeader* plan;
  MlaDecodePart* parts;    // [parts_count]
  MlaDecodeSplit* splits;  // [splits_room]
  MlaDecodePair* pairs;    // [pairs_room, m_tiles], by the number of a pair's first piece
  int32_t* scan;     // [B + 1]: the planner's scratch, used where it does not fit in shared memory
  float* partial_o;  // [pieces, m_tiles * 64, 512]
  float* partial_lse;  // [pieces, m_tiles * 64], base 2

  unsigned char* profile;  // may be nullptr
  int32_t profile_capacity;

  int32_t requests, heads;
  int32_t s_q;          // new tokens of each request; with qo_indptr: at most
  int32_t m_tiles;      // of heads * s_q rows
  int32_t parts_count;  // grid: (m_tiles, parts_count)
  int32_t splits_room;  // parts_count, or B with split_tiles
  int32_t pairs_room;   // 0 with split_tiles
  int32_t split_tiles;  // 0: automatic
  int32_t never;        // a tile count that does not occur; the compiler cannot know it
  PageSize page;        // `factor` and `shift`: of calls that gather rows
  int32_t causal;
  RowAccess q_access, o_access;
  int32_t o_clips;      // the boxes of outputs end where a request does
  int32_t boxed_pages;  // rows of the cache come by tensor-map boxes
  float scale_log2;     // sm_scale * log2(e)
  float lse_scale;      // 1: base 2; ln(2): natural
  // The stream's next kernel may start early: of the attention kernel, and behind the last one.
  bool attention_triggers, call_triggers;
};

}  // namespace fastnorm::cuda
