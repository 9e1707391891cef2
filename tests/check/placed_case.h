// A case with its place in one block of memory, and the call that describes it to the library.
#pragma once

#include <cstddef>

#include "check/case.h"
#include "core/error.h"

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

// Weight or bias, one row or one a head.
struct PlacedColumn {
  bool present = false;
  ref::Type dtype = ref::Type::kF32;
  int64_t base = 0;
  int64_t heads = 1;
  int64_t head_stride = 0;  // elements

  int64_t at(int64_t head) const {
    return base + (heads > 1 ? head : 0) * head_stride * ref::bytes_of(dtype);
  }
};

struct PlacedCase {
  Case what;
  int64_t begin = 0, end = 0;  // bytes of the block that are this case's, guards included
  PlacedTensor x, residual, y, residual_out, mean, rstd;
  PlacedColumn weight, bias;
};

// Places a case from byte `begin` on, a multiple of 256; every tensor has guards on both sides.
PlacedCase place(const Case& what, int64_t begin);

// The library's description of the case for a block at `block` on a device.
fastnorm_status describe(const PlacedCase& placed, std::byte* block, int32_t device_type,
                         int32_t device_id, NormDesc* desc, Error& error);

}  // namespace fastnorm::check
