// A sum of doubles in two doubles, about 106 bits. It costs seven operations a term on every
// processor. `long double` has 64 bits on x86-64, and on AArch64 it calls functions.
#pragma once

#include <cmath>

namespace fastnorm::ref {

class LongSum {
 public:
  LongSum& operator+=(double v) {
    const double sum = sum_ + v, added = sum - sum_;
    rest_ += (sum_ - (sum - added)) + (v - added);  // what rounding took, exactly
    sum_ = sum;
    return *this;
  }

  // The rest of an infinite sum is NaN and counts for nothing.
  double value() const { return std::isfinite(sum_) ? sum_ + rest_ : sum_; }

  // value() / n in one rounding: the rest of the first quotient is divided, too.
  double over(double n) const {
    const double quotient = value() / n;
    if (!std::isfinite(quotient)) return quotient;
    return quotient + (std::fma(-quotient, n, sum_) + rest_) / n;
  }

 private:
  double sum_ = 0, rest_ = 0;
};

}  // namespace fastnorm::ref
