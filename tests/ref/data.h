// Test data from counters: a seed gives the same row on every machine, in any order, from any
// thread.
#pragma once

#include <cstdint>

#include "ref/dtype.h"

namespace fastnorm::ref {

// 64 well-mixed bits of a number. Nested calls hash several numbers.
constexpr uint64_t hash(uint64_t v) {
  v += 0x9e3779b97f4a7c15u;
  v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
  v = (v ^ v >> 27) * 0x94d049bb133111ebu;
  return v ^ v >> 31;
}
template <typename First, typename Second, typename... Rest>
constexpr uint64_t hash(First first, Second second, Rest... rest) {
  return hash(hash(static_cast<uint64_t>(first)) ^ static_cast<uint64_t>(second),
              static_cast<uint64_t>(rest)...);
}

// A sequence of random numbers that selects test cases.
class Random {
 public:
  explicit constexpr Random(uint64_t seed) : state_(seed) {}
  constexpr uint64_t next() { return state_ = hash(state_); }
  // 0 .. count - 1.
  constexpr int64_t below(int64_t count) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(count));
  }
  constexpr bool one_in(int64_t count) { return below(count) == 0; }
  template <typename T, int64_t kCount>
  constexpr const T& of(const T (&choices)[kCount]) {
    return choices[below(kCount)];
  }

 private:
  uint64_t state_;
};

// Kinds of rows. Most are made for one kind of bug.
enum class Pattern : uint8_t {
  kNormal,      // about N(0, 1): most rows
  kRandomBits,  // all finite values of the dtype alike: rounding boundaries, all exponents
  kTiny,        // squares vanish in single precision (f16: its least numbers)
  kSubnormal,   // subnormals of the dtype: flushing to zero shows
  kHuge,        // squares overflow single precision (f16: near its greatest number)
  kZeros,
  kMinusZeros,   // all -0: a sum that does not start from -0 shows
  kOneNan,       // N(0, 1) with one NaN
  kOneInf,       // N(0, 1) with one Inf of either sign
  kLargeMean,    // mean / sigma up to 2^12: E[x^2] - E[x]^2, or padding that adds mean^2, shows
  kOutlier,      // one element of 2^10 or more; in half of the rows it is the first
  kAlternating,  // +c, -c, ..: exercises even and odd chains
  kConstant,     // one value from 1e-20 to 1e30 (f16: its own range): d = 0
  kWeights,      // about N(1, 0.3), with 0, -0, negative and tiny ones
};
inline constexpr int kPatterns = static_cast<int>(Pattern::kWeights);  // those for rows

const char* name_of(Pattern pattern);

// Fills a row with values of `type`.
void fill_row(Pattern pattern, Type type, uint64_t seed, float* values, int64_t n);

}  // namespace fastnorm::ref
