// One norm_heads call in canonical form: what check makes of the caller's parts and tensors. Strides
// are in bytes, defaults are filled in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/norm_desc.h"
#include "fastnorm/norm_heads.h"

namespace fastnorm {

inline constexpr int32_t kMaxHeadsParts = 8;
inline constexpr int64_t kMaxHeadColumns = 8192;
inline constexpr int32_t kMaxRopeAxes = 4;

// f32 values of a token and head: one, or for LAYER's sumsq two that follow each other.
struct HeadValues {
  std::byte* data = nullptr;  // nullptr = absent
  int64_t token_stride = 0;
  int64_t head_stride = 0;  // 0 where a token has one value
  explicit operator bool() const { return data != nullptr; }
};

// A paged cache. Strides of `rows` and of `quant.scale` are innermost first: head, row of a page, page.
struct HeadsCache {
  RowTensor rows;   // elements or codes
  QuantDesc quant;  // scheme NONE: elements of x's dtype
  int64_t pages = 0;
  int64_t page_size = 1;
  explicit operator bool() const { return static_cast<bool>(rows); }
};

struct NormHeadsPart {
  NormDesc norm;  // x, weight, bias, y and quantised y, of rows (token, head); n is d
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
  HeadsCache cache;

  // Whether anything but statistics leaves.
  bool stores_rows() const { return norm.y || norm.quant.any() || cache; }
};

// Cosines or sines. A table of width 2 * R has entry 2j in the place of j where pairs are interleaved.
struct RopeTable {
  const std::byte* data = nullptr;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
};

// Integers of 32 or 64 bits.
struct IndexTensor {
  const std::byte* data = nullptr;  // nullptr = absent
  int64_t axis_stride = 0;
  int64_t stride = 0;
  bool wide = false;
  explicit operator bool() const { return data != nullptr; }

  int64_t at(int64_t axis, int64_t i) const {
    const std::byte* p = data + axis * axis_stride + i * stride;
    if (wide) return *reinterpret_cast<const int64_t*>(p);
    return *reinterpret_cast<const int32_t*>(p);
  }
};

struct NormHeadsDesc {
  int64_t tokens = 0;
  int32_t count = 0;
  Dtype dtype = Dtype::kF32;  // T
  NormHeadsPart parts[kMaxHeadsParts];

  int64_t rope_dim = 0;
  RopeTable cos, sin;
  Dtype table_dtype = Dtype::kF32;
  int64_t table_rows = 0;
  bool table_repeats = false;  // width 2 * R
  IndexTensor positions;       // absent: the token's number
  int32_t axes = 1;
  bool mrope_interleaved = false;
  int64_t section_end[kMaxRopeAxes] = {};  // contiguous: first pair behind an axis' section;
                                           // interleaved: behind an axis' last pair
  IndexTensor slots;
  int64_t slot_count = 0;

  bool empty() const { return count == 0 || tokens == 0; }
};

}  // namespace fastnorm
