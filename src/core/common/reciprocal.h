// 1 / n for means, in integer arithmetic: the caller's thread may have any rounding mode.
#pragma once

#include <bit>
#include <cstdint>

namespace fastnorm {

// f32(1 / f32(n)) for 1 <= n < 2^63, both rounded to nearest even.
constexpr float reciprocal_of(int64_t n) {
  // f32(n) = m * 2^e with 2^23 <= m < 2^24.
  auto m = static_cast<uint64_t>(n);
  const int e = std::bit_width(m) - 24;
  if (e > 0) {
    const uint64_t below = m & ((uint64_t{1} << e) - 1), half = uint64_t{1} << (e - 1);
    m >>= e;
    if (below > half || (below == half && m % 2 != 0))
      ++m;  // at most 2^24, which the quotient allows
  } else {
    m <<= -e;
  }
  // 2^47 / m is between 2^23 and 2^24, and never half way between two integers: 2^48 has no odd
  // divisor.
  constexpr uint64_t kDividend = uint64_t{1} << 47, kHidden = 1 << 23;
  uint64_t q = kDividend / m;
  if (2 * (kDividend % m) > m) ++q;
  // q * 2^(-47 - e). The hidden bit of 2^24 carries into the exponent.
  return std::bit_cast<float>(
      static_cast<uint32_t>((static_cast<uint64_t>(103 - e) << 23) + (q - kHidden)));
}

}  // namespace fastnorm
