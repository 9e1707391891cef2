// The rows of a tensor in the order of its shape, which is the same on all ranks whatever their
// strides are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/common/check.h"

namespace fastnorm {

struct PeerRows {
  static constexpr int kMaxDims = 7;  // leading dimensions

  std::byte* data = nullptr;  // nullptr = absent
  Dtype dtype = Dtype::kUnknown;
  int32_t dims = 0;
  int64_t extent[kMaxDims] = {};        // outermost first
  int64_t stride_bytes[kMaxDims] = {};  // of them

  std::byte* row(int64_t index) const {
    uint64_t offset = 0;
    for (int32_t d = dims - 1; d >= 0; --d) {
      offset += static_cast<uint64_t>(index % extent[d]) * static_cast<uint64_t>(stride_bytes[d]);
      index /= extent[d];
    }
    return data + static_cast<int64_t>(offset);
  }
};

// The rows of a tensor that check_tensor() has passed and that has elements.
inline PeerRows peer_rows(const fastnorm_tensor& t) {
  PeerRows rows;
  rows.data = address_of(t);
  rows.dtype = dtype_from(t.dtype);
  rows.dims = t.ndim - 1;
  const int64_t bytes = dtype_bytes(rows.dtype);
  int64_t compact = t.shape[t.ndim - 1] * bytes;
  for (int32_t d = rows.dims - 1; d >= 0; --d) {
    rows.extent[d] = t.shape[d];
    rows.stride_bytes[d] = t.shape[d] == 1        ? 0
                           : t.strides == nullptr ? compact
                                                  : stride_bytes_of(t, d, bytes);
    compact *= t.shape[d];
  }
  return rows;
}

// The addresses from the first byte of any row to the last one's end.
struct PeerSpan {
  uintptr_t begin, end;
};
inline PeerSpan peer_span(const PeerRows& rows, int64_t row_bytes) {
  PeerSpan span{reinterpret_cast<uintptr_t>(rows.data), reinterpret_cast<uintptr_t>(rows.data)};
  for (int32_t d = 0; d < rows.dims; ++d) {
    const int64_t reach = rows.stride_bytes[d] * (rows.extent[d] - 1);
    (reach < 0 ? span.begin : span.end) += static_cast<uintptr_t>(reach);
  }
  span.end += static_cast<uintptr_t>(row_bytes);
  return span;
}

}  // namespace fastnorm
