// Turns the bytes of a fuzzer into decisions. When they run out every answer is 0, so each prefix
// of an input is an input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fastnorm::fuzz {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }

  template <typename T>
  T take() {
    T value{};
    const size_t count = left_ < sizeof value ? left_ : sizeof value;
    if (count > 0) std::memcpy(&value, data_, count);
    data_ += count;
    left_ -= count;
    return value;
  }

  uint8_t byte() { return take<uint8_t>(); }

  // 0 .. below - 1
  uint32_t pick(uint32_t below) { return byte() % below; }

  // True once in 32 for random bytes, and never for missing ones: most of a call stays valid, so
  // that what lies behind the first check is reached.
  bool rarely() { return (byte() & 31) == 31; }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace fastnorm::fuzz
