// The numbers of a kernel's variant in one word, which orders a table and names the kernel.
//
// Variant::numbers(v, use) calls use(number, bits) for each of them, the one of the highest bits
// first.
#pragma once

#include <type_traits>

namespace fastnorm {

template <class Word, class Variant>
constexpr Word packed_word(const Variant& v) {
  Word word = 0;
  Variant::numbers(v, [&](auto number, int bits) {
    word = word << bits | (static_cast<Word>(number) & ((Word{1} << bits) - 1));
  });
  return word;
}

// The variant of which packed_word() made the word.
template <class Variant, class Word>
constexpr Variant variant_in(Word word) {
  Variant v;
  int left = 0;
  Variant::numbers(v, [&](auto&, int bits) { left += bits; });
  Variant::numbers(v, [&](auto& number, int bits) {
    left -= bits;
    number = static_cast<std::remove_reference_t<decltype(number)>>(word >> left &
                                                                    ((Word{1} << bits) - 1));
  });
  return v;
}

}  // namespace fastnorm
