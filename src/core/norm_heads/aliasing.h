// Which tensors of a norm_heads call may share memory.
#pragma once

#include "core/common/error.h"
#include "core/norm/row_map.h"
#include "core/norm_heads/desc.h"

namespace fastnorm {

// Checks that no output shares a byte with another tensor or with itself. Only y may be its own x.
// check_norm_part() has compared the tensors that a part has in common with a norm. The call has
// tokens and parts.
fastnorm_status check_norm_heads_aliasing(const fastnorm_norm_heads_args& args,
                                          const NormHeadsDesc& desc, Error& error);

// A tensor that all parts read, as rows. It has at most kMaxOuter leading dimensions.
struct SharedView {
  RowBytes bytes() const { return {data, strides, piece_bytes, 1, 0}; }

  const std::byte* data;
  int64_t outer[kMaxOuter];    // extents, innermost first
  int64_t strides[kMaxOuter];  // bytes
  int64_t piece_bytes;
};

// False if it has no elements.
bool shared_view(const fastnorm_tensor& tensor, SharedView* view);

}  // namespace fastnorm
