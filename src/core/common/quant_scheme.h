// The schemes of quantised outputs, a line each.
#pragma once

#include <cstdint>
#include <iterator>

#include "fastnorm/norm.h"

namespace fastnorm {

// What a scale is.
enum class SchemeScale : uint8_t {
  kNone,     // nothing is quantised
  kInput,    // f32, an input
  kDynamic,  // f32, from the greatest magnitude; with scale_pow2 a power of two, f32 or e8m0
  kE8M0,     // a power of two
  kE4M3,     // with a global scale beside it
};

inline constexpr int32_t kOwnBlock = -1;

struct QuantScheme {
  fastnorm_quant_scheme scheme;
  const char* text;  // in errors
  int32_t block;     // columns that share a scale; 0 = the row or the tensor; kOwnBlock: block_size
  int32_t code_bits;  // 8: f8 or i8; 4: f4
  SchemeScale scale;

  constexpr bool is_fp4() const { return code_bits == 4; }
  constexpr bool is_mx() const { return scale == SchemeScale::kE8M0; }
};

// In the order of the enum.
inline constexpr QuantScheme kQuantSchemes[] = {
    {FASTNORM_QUANT_NONE, "FASTNORM_QUANT_NONE (0)", 0, 0, SchemeScale::kNone},
    {FASTNORM_QUANT_PER_TENSOR, "FASTNORM_QUANT_PER_TENSOR (1)", 0, 8, SchemeScale::kInput},
    {FASTNORM_QUANT_PER_ROW, "FASTNORM_QUANT_PER_ROW (2)", 0, 8, SchemeScale::kDynamic},
    {FASTNORM_QUANT_PER_BLOCK, "FASTNORM_QUANT_PER_BLOCK (3)", kOwnBlock, 8, SchemeScale::kDynamic},
    {FASTNORM_QUANT_MXFP8, "FASTNORM_QUANT_MXFP8 (4)", 32, 8, SchemeScale::kE8M0},
    {FASTNORM_QUANT_NVFP4, "FASTNORM_QUANT_NVFP4 (5)", 16, 4, SchemeScale::kE4M3},
    {FASTNORM_QUANT_MXFP4, "FASTNORM_QUANT_MXFP4 (6)", 32, 4, SchemeScale::kE8M0},
};

static_assert([] {
  for (size_t i = 0; i < std::size(kQuantSchemes); ++i) {
    if (static_cast<size_t>(kQuantSchemes[i].scheme) != i) return false;
  }
  return true;
}());

constexpr const QuantScheme& scheme_of(fastnorm_quant_scheme scheme) {
  return kQuantSchemes[static_cast<size_t>(scheme)];
}

}  // namespace fastnorm
