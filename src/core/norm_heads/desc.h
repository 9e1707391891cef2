// One norm_heads call in canonical form: what the checks make of the caller's parts and tensors.
// Strides are in bytes. Defaults are filled in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/common/dtype.h"
#include "core/common/rope_desc.h"
#include "core/norm/desc.h"
#include "fastnorm/norm_heads.h"

namespace fastnorm {

inline constexpr int32_t kMaxHeadsParts = 8;
inline constexpr int64_t kMaxHeadColumns = 8192;

// Values of a token and head: one, or two in a row for LAYER's sumsq.
struct HeadValues {
  std::byte* data = nullptr;  // nullptr = absent
  int64_t token_stride = 0;
  int64_t head_stride = 0;  // 0 if a token has one value for all heads
  Dtype dtype = Dtype::kF32;
  explicit operator bool() const { return data != nullptr; }
};

// A paged cache. Strides of `rows` and of `quant.scale` are innermost first: head, row of a page,
// page.
struct HeadsCache {
  RowTensor rows;   // elements or codes
  QuantDesc quant;  // scheme NONE: the cache holds elements of x's dtype
  RowTensor tail;   // elements of x's dtype, of the columns behind those of `rows`
  int64_t tail_columns = 0;
  int64_t pages = 0;
  int64_t page_size = 1;
  explicit operator bool() const { return static_cast<bool>(rows); }
};

struct NormHeadsPart {
  NormDesc norm;  // x, weight, bias, y and quantised y, with rows (token, head); n is d
  int64_t heads = 1;
  int64_t head_stride = 0;  // of x
  int64_t token_stride = 0;
  bool normalise = false;
  bool across_heads = false;
  bool rope = false;
  bool interleaved = false;
  bool inverse = false;
  bool round_before_rope = false;
  bool rope_every_step = false;
  int64_t rope_offset = 0;
  HeadValues mean, rstd, mean_in, rstd_in, sumsq;
  HeadValues head_weights, head_weights_out;
  float head_weights_factor = 1;
  HeadsCache cache;

  // Columns of a row of the cache ahead of its tail.
  int64_t cache_columns() const { return norm.n - cache.tail_columns; }
  // Whether a part writes more than statistics.
  bool stores_rows() const { return norm.y || norm.quant.any() || cache; }
};

// What the parts of a call share.
struct NormHeadsShared : RopeTables {
  int64_t tokens = 0;
  int32_t count = 0;
  Dtype dtype = Dtype::kF32;      // T
  void* parallel_user = nullptr;  // of the caller's parallel loop; nullptr = the context's
  uint32_t pdl = 0;               // kPdlWait and kPdlTrigger; before with_pdl() also kNoPdl

  IndexTensor slots;       // absent: no token before slot_count is padding
  int64_t slot_count = 0;  // tokens from here on are padding; without slots, the tokens

  bool empty() const { return count == 0 || tokens == 0; }
  // Reads the slot.
  bool is_padding(int64_t token) const {
    return token >= slot_count || (slots && slots.at(0, token) < 0);
  }
};

struct NormHeadsDesc : NormHeadsShared {
  NormHeadsPart parts[kMaxHeadsParts];  // the first `count` of them count
};

}  // namespace fastnorm
