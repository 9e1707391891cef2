// What every check of a tensor has in common, whatever its role.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/check.h"
#include "core/dtype.h"

namespace fastnorm {

struct Text {
  char c[96];
};

// "[2, 3]"
Text shape_text(const int64_t* shape, int32_t rank);
Text dtype_text(fastnorm_dtype dtype);

// The address of a tensor's first element. By integers: where there are no elements, data may be NULL.
inline std::byte* address_of(const fastnorm_tensor& t) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(t.data) + t.byte_offset);
}

// An enum field as the number it holds: a C caller may have stored any.
template <class Enum>
int32_t number(const Enum& field) {
  int32_t value;
  static_assert(sizeof field == sizeof value);
  std::memcpy(&value, &field, sizeof value);
  return value;
}

struct TensorRule {
  Dtype dtype;  // known
  int32_t max_rank;
  bool last_contiguous;
};

// Device, rank, extents, strides that fit in 64 bits, an address that suits the dtype.
fastnorm_status check_tensor(const char* name, const fastnorm_tensor& t, TensorRule rule,
                             CheckedDevice device, Error& error);

}  // namespace fastnorm
