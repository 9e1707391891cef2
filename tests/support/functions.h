// Values that exp, sigmoid, silu and tanh are tried with.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/share.h"

namespace fastnorm::test {

// Every `stride`-th bit pattern, an odd number, and those at the ends of ranges.
inline std::vector<float> function_arguments(uint32_t stride) {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += uint64_t{stride} * support::share())
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  const float inf = std::numeric_limits<float>::infinity();
  for (const float v :
       {0.0f,   0x1p-149f, 0x1p-126f, 0x1p-24f, 0.625f,
        1.0f,   44.0f,     45.0f,     87.0f,    87.5f,
        88.5f,  88.8f,     90.0f,     103.0f,   104.0f,
        108.0f, 110.0f,    0x1p127f,  inf,      std::numeric_limits<float>::quiet_NaN()}) {
    for (const float w : {v, std::nextafter(v, 0.0f), std::nextafter(v, inf)}) {
      values.push_back(w);
      values.push_back(-w);
    }
  }
  // Beside the halves between two multiples of ln 2, where the exponent changes.
  for (int n = -160; n <= 130; ++n) {
    auto v = static_cast<float>((n + 0.5) * 0.69314718055994530942);
    for (int i = 0; i < 3; ++i) v = std::nextafter(v, -inf);
    for (int i = 0; i < 7; ++i, v = std::nextafter(v, inf)) values.push_back(v);
  }
  return values;
}

}  // namespace fastnorm::test
