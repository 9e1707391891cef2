// Which bytes a tensor touches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fastnorm/fastnorm.h"

namespace fastnorm::fuzz {

// Elements, or -1 where there are more than matter here.
inline int64_t elements_of(const fastnorm_tensor& t) {
  int64_t count = 1;
  if (std::find(t.shape, t.shape + t.ndim, 0) != t.shape + t.ndim) return 0;
  for (int32_t i = 0; i < t.ndim; ++i) {
    if (__builtin_mul_overflow(count, t.shape[i], &count)) return -1;
  }
  return count;
}

// Unsigned, so that it may wrap.
inline int64_t stride_of(const fastnorm_tensor& t, int32_t dim) {
  if (t.strides != nullptr) return t.strides[dim];
  uint64_t stride = 1;
  for (int32_t i = t.ndim - 1; i > dim; --i) stride *= static_cast<uint64_t>(t.shape[i]);
  return static_cast<int64_t>(stride);
}

inline int64_t bits_of(fastnorm_dtype d) { return int64_t{d.bits} * d.lanes; }

// `elements` in bytes; codes of half a byte come in pairs.
inline uint64_t bytes_of(int64_t elements, fastnorm_dtype dtype) {
  const int64_t bits = bits_of(dtype);
  return bits < 8 ? static_cast<uint64_t>(elements / (bits == 0 ? 1 : 8 / bits))
                  : static_cast<uint64_t>(elements) * static_cast<uint64_t>(bits / 8);
}

// Elements ahead of number `e`, in the order of the shape.
inline uint64_t place_of(const fastnorm_tensor& t, const int64_t* strides, int64_t e) {
  uint64_t place = 0;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    place += static_cast<uint64_t>(e % t.shape[d]) * static_cast<uint64_t>(strides[d]);
    e /= t.shape[d];
  }
  return place;
}

// From a tensor's first byte to its last one; -1 where it is large, reaches ahead of its first
// byte, or cannot be read.
inline int64_t bytes_behind(const fastnorm_tensor& t) {
  constexpr int64_t kMost = 1 << 17;
  if (t.ndim < 1 || t.ndim > 8 || t.shape == nullptr || bits_of(t.dtype) == 0) return -1;
  int64_t last = 0;
  for (int32_t d = 0; d < t.ndim; ++d) {
    if (t.shape[d] < 0 || t.shape[d] > kMost) return -1;
  }
  const int64_t elements = elements_of(t);
  if (elements <= 0 || elements > kMost) return elements == 0 ? 0 : -1;
  for (int32_t d = 0; d < t.ndim; ++d) {
    const int64_t stride = stride_of(t, d);
    if (t.shape[d] == 1) continue;
    if (stride < 0 || stride > kMost) return -1;
    last += (t.shape[d] - 1) * stride;
  }
  return static_cast<int64_t>(
      ((static_cast<uint64_t>(last) + 1) * static_cast<uint64_t>(bits_of(t.dtype)) + 7) / 8);
}

// body(address, bytes), of a tensor in real memory.
template <class Body>
void for_each_element(const fastnorm_tensor& t, const Body& body) {
  const auto* const first = static_cast<const uint8_t*>(t.data) + t.byte_offset;
  int64_t strides[8];
  for (int32_t d = 0; d < t.ndim; ++d) strides[d] = stride_of(t, d);
  const int64_t count = elements_of(t);
  for (int64_t e = 0; e < count; ++e) {
    const auto place = static_cast<int64_t>(place_of(t, strides, e));
    body(first + bytes_of(place, t.dtype), std::max<size_t>(bytes_of(1, t.dtype), 1));
  }
}

}  // namespace fastnorm::fuzz
