// The element types, one table row each.
#pragma once

#include <array>
#include <cstdint>

#include "fastnorm/tensor.h"

namespace fastnorm {

// The dtypes of rows come first. Kernels exist for these.
enum class Dtype : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF4E2M1,
  kF4E2M1x2,
  kI8,
  kU8,
  kI32,
  kI64,
  kUnknown,
};
inline constexpr int kRowDtypes = 3;

struct DtypeInfo {
  fastnorm_dtype_id id;
  const char* name;
  int32_t bits;  // of one element, lanes included
};

inline constexpr DtypeInfo kDtypes[] = {
    {FASTNORM_DTYPE_F32, "f32", 32},
    {FASTNORM_DTYPE_F16, "f16", 16},
    {FASTNORM_DTYPE_BF16, "bf16", 16},
    {FASTNORM_DTYPE_F8_E4M3FN, "f8_e4m3fn", 8},
    {FASTNORM_DTYPE_F8_E5M2, "f8_e5m2", 8},
    {FASTNORM_DTYPE_F8_E8M0FNU, "f8_e8m0fnu", 8},
    {FASTNORM_DTYPE_F4_E2M1FN, "f4_e2m1fn", 4},
    {FASTNORM_DTYPE_F4_E2M1FN_X2, "f4_e2m1fn_x2", 8},
    {FASTNORM_DTYPE_I8, "i8", 8},
    {FASTNORM_DTYPE_U8, "u8", 8},
    {FASTNORM_DTYPE_I32, "i32", 32},
    {FASTNORM_DTYPE_I64, "i64", 64},
};

constexpr uint32_t dtype_id(fastnorm_dtype dtype) {
  return dtype.code | uint32_t{dtype.bits} << 8 | uint32_t{dtype.lanes} << 16;
}

constexpr Dtype dtype_from(fastnorm_dtype dtype) {
  const uint32_t id = dtype_id(dtype);
  if (id == FASTNORM_DTYPE_BF16) return Dtype::kBF16;  // the most common one
  for (int i = 0; i < static_cast<int>(Dtype::kUnknown); ++i) {
    if (static_cast<uint32_t>(kDtypes[i].id) == id) return static_cast<Dtype>(i);
  }
  return Dtype::kUnknown;
}

constexpr const char* dtype_name(Dtype dtype) {
  return dtype == Dtype::kUnknown ? "unknown" : kDtypes[static_cast<int>(dtype)].name;
}

// An array of its own, because a call reads it many times. 0 for kUnknown.
inline constexpr auto kDtypeBytes = [] {
  std::array<uint8_t, std::size(kDtypes) + 1> bytes = {};
  for (size_t i = 0; i < std::size(kDtypes); ++i)
    bytes[i] = static_cast<uint8_t>(kDtypes[i].bits / 8);
  return bytes;
}();

constexpr int64_t dtype_bytes(Dtype dtype) { return kDtypeBytes[static_cast<size_t>(dtype)]; }

}  // namespace fastnorm
