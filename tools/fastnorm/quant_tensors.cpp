#include "quant_tensors.h"

#include "support/quant_scheme.h"

namespace fastnorm::tool {

QuantTensors quant_tensors(fastnorm_quant_scheme scheme, const std::vector<int64_t>& shape,
                           int32_t block_size, fastnorm_scale_layout layout) {
  const QuantScheme& of = support::scheme_of(scheme);
  const bool swizzled = layout == FASTNORM_SCALE_SWIZZLED_128X4;
  QuantTensors t;
  t.codes = fastnorm_dtype_of(of.is_fp4() ? FASTNORM_DTYPE_U8 : FASTNORM_DTYPE_F8_E4M3FN);
  t.scale = fastnorm_dtype_of(of.scale == SchemeScale::kE4M3 ? FASTNORM_DTYPE_F8_E4M3FN
                              : of.is_mx() || swizzled       ? FASTNORM_DTYPE_F8_E8M0FNU
                                                             : FASTNORM_DTYPE_F32);
  t.codes_shape = shape;
  if (shape.empty()) return t;  // which the library refuses
  if (of.is_fp4()) t.codes_shape.back() /= 2;
  t.scale_shape.assign(shape.begin(), shape.end() - 1);
  const int64_t block = support::scale_columns(scheme, block_size > 0 ? block_size : 128);
  const int64_t scales = (shape.back() + block - 1) / block;
  int64_t rows = 1;
  for (const int64_t extent : t.scale_shape) rows *= extent;
  if (scheme == FASTNORM_QUANT_PER_TENSOR ||
      (scheme == FASTNORM_QUANT_PER_ROW && t.scale_shape.empty())) {
    t.scale_shape = {1};
  } else if (swizzled) {
    t.scale_shape = {(rows + 127) / 128 * 512 * ((scales + 3) / 4)};
  } else if (scheme != FASTNORM_QUANT_PER_ROW) {
    t.scale_shape.push_back(scales);
  }
  return t;
}

}  // namespace fastnorm::tool
