// Names of element types, and conversion of the three that rows may have.
#pragma once

#include <fastnorm/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fastnorm::tool {

struct DtypeName {
  std::string_view name;         // as the command line says it: "bf16"
  std::string_view safetensors;  // as a safetensors header says it: "BF16"
  fastnorm_dtype dtype;
};

const DtypeName* find_dtype(std::string_view name);
const DtypeName* find_safetensors_dtype(std::string_view name);
std::string safetensors_dtype_names();  // of all that are known, with commas
const DtypeName* find_dtype(fastnorm_dtype dtype);

std::string dtype_names();  // as the command line says them, with commas

// The dtype of a known name, or `otherwise` where it is empty.
fastnorm_dtype dtype_or(const std::string& name, fastnorm_dtype otherwise);

// "f32", "f16", "bf16": what x, weight and so on may have.
std::vector<std::string> row_dtype_names();

inline size_t element_bytes(fastnorm_dtype dtype) {
  return static_cast<size_t>(dtype.bits) * dtype.lanes / 8;
}

// Number of significant bits, exponent of the least normal number and largest finite value of a row
// dtype.
struct FloatFormat {
  int precision;
  int min_exponent;
  double max_finite;
};
FloatFormat float_format(fastnorm_dtype dtype);

// The nearest value of `format`, ties to even, subnormals kept, overflow to infinity.
double round_to(const FloatFormat& format, double value);

// One element of a row dtype, from and to its bits.
double decode(fastnorm_dtype dtype, const void* element);
void encode(fastnorm_dtype dtype, double value, void* element);

}  // namespace fastnorm::tool
