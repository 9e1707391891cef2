// The rope of a call in canonical form: tables of cosines and sines, and the row that each token
// uses. Strides are in bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/common/dtype.h"

namespace fastnorm {

inline constexpr int32_t kMaxRopeAxes = 4;

// Cosines or sines. In a table of width 2 * R with interleaved pairs, entry 2j stands for j.
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

struct RopeTables {
  int64_t rope_dim = 0;
  RopeTable cos, sin;
  Dtype table_dtype = Dtype::kF32;
  int64_t table_rows = 0;
  bool table_repeats = false;  // width 2 * R
  IndexTensor positions;       // absent: the token's number
  int32_t axes = 1;
  bool mrope_interleaved = false;
  // Contiguous sections: one past the last pair of an axis. Interleaved: one past the last pair
  // that the axis rotates.
  int64_t section_end[kMaxRopeAxes] = {};
};

}  // namespace fastnorm
