// What a scheme of quantisation makes of rows.
#pragma once

#include <fastnorm/norm.h>

#include <cstdint>
#include <vector>

namespace fastnorm::tool {

// What a scheme's outputs are like where nothing else is said; f4 as pairs in u8, which every file
// format has.
struct QuantTensors {
  fastnorm_dtype codes = {}, scale = {};
  std::vector<int64_t> codes_shape, scale_shape;
};

// For rows of a shape; with a `block_size` of 0 blocks have 128 columns.
QuantTensors quant_tensors(fastnorm_quant_scheme scheme, const std::vector<int64_t>& shape,
                           int32_t block_size = 0,
                           fastnorm_scale_layout layout = FASTNORM_SCALE_ROW_MAJOR);

}  // namespace fastnorm::tool
