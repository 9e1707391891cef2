// A case with its place in one block of memory, and its call of the library.
#pragma once

#include <cstddef>

#include "check/case.h"
#include "core/common/error.h"

namespace fastnorm::check {

// A tensor's place in the block.
struct PlacedTensor {
  bool present = false;
  ref::Type dtype = ref::Type::kF32;
  int64_t row_elements = 0;  // n, or 1
  int64_t base = 0;          // bytes from the block's start to the first row
  TensorLayout layout;

  int64_t row_bytes() const { return row_elements * ref::bytes_of(dtype); }
  // Bytes from the block's start to a row.
  int64_t at(const RowIndex& index) const {
    int64_t elements = 0;
    for (int d = 0; d < kMaxOuter; ++d) elements += index.digit[d] * layout.stride[d];
    return base + elements * ref::bytes_of(dtype);
  }
};

// Weight or bias: one row, or one for each index of some leading dimensions.
struct PlacedWeight {
  bool present = false;
  ref::Type dtype = ref::Type::kF32;
  int64_t base = 0;
  int64_t heads = 1;
  int64_t head_stride = 0;  // elements

  int64_t at(int64_t head) const {
    return base + (heads > 1 ? head : 0) * head_stride * ref::bytes_of(dtype);
  }
};

// Quantised outputs; all in bytes.
struct PlacedQuant {
  bool present = false;  // codes and scales
  int64_t code_bytes = 0;
  int64_t scale_size = 4;  // of one
  int64_t scales = 0;      // of a row
  int64_t codes = 0, scale = 0, tensor_scale = -1, global_scale = -1, clamp_scale = -1, amax = -1;
  // -1 = absent
  int64_t scale_stride[kMaxOuter] = {}, scale_step = 0;
  int64_t scale_bytes = 0;  // of the tensor, gaps included
  bool swizzled = false;
  TensorLayout code_layout;

  int64_t codes_at(const RowIndex& index) const {
    int64_t at = codes;
    for (int d = 0; d < kMaxOuter; ++d) at += index.digit[d] * code_layout.stride[d];
    return at;
  }
  int64_t scale_at(const RowIndex& index, int64_t row, int64_t number) const {
    if (swizzled) return scale + ref::swizzled_index(row, number, scales);
    int64_t at = scale + number * scale_step;
    for (int d = 0; d < kMaxOuter; ++d) at += index.digit[d] * scale_stride[d];
    return at;
  }
};

struct PlacedCase {
  Case what;
  int64_t begin = 0, end = 0;  // bytes of the block that are this case's, guards included
  PlacedTensor x, residual, y, residual_out, mean, rstd;
  PlacedWeight weight, bias;
  PlacedQuant quant;
};

// Places a case from byte `begin` on, a multiple of 256. Every tensor has guards on both sides.
PlacedCase place(const Case& what, int64_t begin);

// The library's description of the case, for a block at `block` on a device.
fastnorm_status describe(const PlacedCase& placed, std::byte* block, int32_t device_type,
                         int32_t device_id, NormDesc* desc, Error& error);

}  // namespace fastnorm::check
