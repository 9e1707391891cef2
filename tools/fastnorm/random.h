// Numbers of the random data that commands make: the same on every machine.
#pragma once

#include <cstdint>

namespace fastnorm::tool {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 16;
  }
  // In [least, most).
  double uniform(double least, double most) {
    return least + (most - least) * static_cast<double>(next() & 0xffffffffu) * 0x1p-32;
  }

 private:
  uint64_t state_;
};

}  // namespace fastnorm::tool
