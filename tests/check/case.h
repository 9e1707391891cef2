// One call of the norm family to check: what it computes, and its layout in memory.
//
// The two are separate. Calls with the same content must give the same bits, for every layout,
// kernel and batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/norm/desc.h"
#include "core/norm/key.h"
#include "ref/data.h"
#include "ref/norm_spec.h"
#include "ref/quant_spec.h"

namespace fastnorm::check {

inline constexpr int kMixed = -1;  // each row has a pattern of its own

// Together with a row's number, this determines every bit of its results.
struct Content {
  ref::NormOptions options;
  int64_t n = 1;
  bool add = false;
  ref::Type residual_dtype = ref::Type::kF32;
  std::optional<ref::Type> weight, bias;  // absent, or the dtype
  bool weight_heads = false, bias_heads = false;
  ref::QuantOptions quant;            // scheme none: y alone
  float tensor_scale = 1;             // PER_TENSOR
  std::optional<float> global_scale;  // NVFP4
  std::optional<float> clamp_scale;   // the value on the device; quant.clamp is the result
  int pattern = kMixed;               // a ref::Pattern
  uint64_t seed = 0;

  uint64_t hash() const;
};

// A tensor of rows, or of one value for each row.
struct TensorLayout {
  int64_t stride[kMaxOuter] = {};  // elements, innermost first; 0 = broadcast, for inputs
  int64_t shift = 0;               // elements past a 256-byte boundary
};

// Where the scales of rows are: at the default strides, at the caller's strides, or in tiles.
enum class ScalePlaces { kRowMajor, kColumnMajor, kStrided, kSwizzled };

struct Layout {
  int rank = 1;                          // leading dimensions, 0 to 3
  int64_t outer[kMaxOuter] = {1, 1, 1};  // innermost first
  int64_t first_row = 0;                 // number of the first row, which selects its data
  TensorLayout x, residual, y, residual_out, mean, rstd;
  int64_t weight_shift = 0, bias_shift = 0;  // elements
  int64_t weight_pad = 0, bias_pad = 0;      // elements between heads
  // The leading dimensions, as bits, along which weight and bias vary if they do: usually heads.
  unsigned weight_dims = 1, bias_dims = 1;
  bool y_in_place = false;
  bool sum_in_place = false;                         // residual_out is residual
  bool y_over_residual = false, sum_over_x = false;  // y is residual, residual_out is x
  std::optional<ref::Type> residual_out_dtype;
  bool store_mean = false, store_rstd = false;
  bool last_one = false;     // the statistics have a shape with a last 1
  bool byte_offset = false;  // the address has a byte_offset
  bool store_y = true;
  TensorLayout codes;  // of bytes
  ScalePlaces scales = ScalePlaces::kRowMajor;
  std::optional<float> amax;  // wanted, with this value before the call
  bool packed_u8 = false;     // fp4 as pairs in u8, not as single elements

  int64_t rows() const { return outer[0] * outer[1] * outer[2]; }
};

struct Case {
  Content content;
  Layout layout;
  bool bounds = false;  // also compare with the reference in double

  std::string text() const;
};

// Index of row r in each leading dimension.
struct RowIndex {
  int64_t digit[kMaxOuter];
};
RowIndex index_of(const Layout& layout, int64_t row);

// Number of the row of weight or bias at an index. It varies along the dimensions in `dims`, the
// first the fastest. Also how many rows it has.
int64_t head_of(const Layout& layout, unsigned dims, const RowIndex& index);
int64_t heads_of(const Layout& layout, unsigned dims);

// Number of the tensor's row at an index: broadcast dimensions do not count.
int64_t row_number(const Layout& layout, const TensorLayout& tensor, const RowIndex& index);

}  // namespace fastnorm::check
