// Makes the name of a kernel in a constexpr table. Needs no CUDA.
#pragma once

#include <cstddef>

namespace fastnorm::cuda {

// Appends to a zeroed array of characters. It drops what does not fit; tests check that names are
// unique.
template <size_t kSize>
class NameWriter {
 public:
  constexpr explicit NameWriter(char (&name)[kSize]) : name_(name) {}

  constexpr NameWriter& operator<<(char c) {
    if (length_ + 1 < kSize) name_[length_++] = c;
    return *this;
  }
  constexpr NameWriter& operator<<(const char* text) {
    while (*text != '\0') *this << *text++;
    return *this;
  }
  constexpr NameWriter& operator<<(int number) {
    if (number >= 10) *this << number / 10;
    return *this << static_cast<char>('0' + number % 10);
  }

 private:
  char (&name_)[kSize];
  size_t length_ = 0;
};

}  // namespace fastnorm::cuda
