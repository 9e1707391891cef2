// Turns the lines of a family's variants.inc into kernels. A line describes several kernels. A
// kernel's word packs its numbers. A table has the kernels of an architecture, sorted by word. The
// parts below are the words, the tables and the kernels' addresses. Needs no CUDA.
//
// A family is a struct with these members:
//
//   Variant, Entry           one kernel as data; a variant with its kernel's name
//   kLines                   the file's lines: structs that derive from FamilyLine<Variant>
//   kDetailBits              the low bits of a word that do not tell kernels apart
//   variant_of(word)         the inverse of packed(variant)
//   make_entry(variant, line)
//   expand(line, variant, use)   calls use(variant) for what a line combines besides dtypes
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "core/dtype.h"

namespace fastnorm::cuda {

// The words that a line of variants.inc may use.
namespace family_words {

constexpr uint8_t dtype_bit(Dtype dtype) { return 1 << static_cast<int>(dtype); }
inline constexpr uint8_t F32 = dtype_bit(Dtype::kF32), F16 = dtype_bit(Dtype::kF16),
                         BF16 = dtype_bit(Dtype::kBF16), HALF = F16 | BF16, ALL = F32 | HALF;
// SM90: the line is for architectures whose kernels hold rows in registers; EVERY: for all.
enum Archs : uint8_t { EVERY, SM90 };

}  // namespace family_words

template <class Variant>
struct FamilyLine {
  Variant variant;  // without what the line combines
  uint8_t dtypes;
  family_words::Archs archs = family_words::EVERY;
};

// The default of expand(): a line combines dtypes alone.
struct ExpandsDtypes {
  template <class Line, class Variant, typename Use>
  static constexpr void expand(const Line&, const Variant& variant, Use use) {
    use(variant);
  }
};

// Calls use(variant, line) for each kernel of an architecture. `held`: also for the SM90 lines.
template <class Family, typename Use>
constexpr void for_each_kernel(bool held, Use use) {
  uint16_t number = 0;
  for (const auto& line : Family::kLines) {
    const uint16_t mine = number++;
    if (line.archs == family_words::SM90 && !held) continue;
    for (int dtype = 0; dtype < kRowDtypes; ++dtype) {
      if ((line.dtypes >> dtype & 1) == 0) continue;
      typename Family::Variant variant = line.variant;
      variant.dtype = static_cast<Dtype>(dtype);
      Family::expand(line, variant, [&](const typename Family::Variant& v) { use(v, mine); });
    }
  }
}

template <class Family>
constexpr size_t count_kernels(bool held) {
  size_t count = 0;
  for_each_kernel<Family>(held, [&](const auto&, uint16_t) { ++count; });
  return count;
}

template <class Family>
using FamilyWord = decltype(packed(typename Family::Variant{}));

// A kernel, and the number of its line.
template <class Family>
struct NumberedWord {
  FamilyWord<Family> word = 0;
  uint16_t line = 0;
};

template <class Family, bool kHeld>
constexpr auto make_numbered_words() {
  std::array<NumberedWord<Family>, count_kernels<Family>(kHeld)> words = {};
  size_t count = 0;
  for_each_kernel<Family>(kHeld, [&](const auto& variant, uint16_t line) {
    words[count++] = {packed(variant), line};
  });
  std::sort(words.begin(), words.end(),
            [](const auto& a, const auto& b) { return a.word < b.word; });
  return words;
}

// An architecture's kernels, sorted by their words.
template <class Family, bool kHeld>
inline constexpr auto kNumberedWords = make_numbered_words<Family, kHeld>();

template <class Family, bool kHeld>
constexpr typename Family::Variant variant_at(size_t index) {
  return Family::variant_of(kNumberedWords<Family, kHeld>[index].word);
}

template <class Family, bool kHeld>
constexpr bool each_once() {
  const auto& words = kNumberedWords<Family, kHeld>;
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i - 1].word >> Family::kDetailBits >= words[i].word >> Family::kDetailBits)
      return false;
  }
  return true;
}

// The architecture's kernels with their names. Each kernel is there once.
template <class Family, bool kHeld>
constexpr auto make_entries() {
  constexpr auto& kWords = kNumberedWords<Family, kHeld>;
  static_assert(each_once<Family, kHeld>(), "two lines make the same kernel");
  std::array<typename Family::Entry, kWords.size()> entries = {};
  for (size_t i = 0; i < entries.size(); ++i)
    entries[i] = Family::make_entry(Family::variant_of(kWords[i].word), kWords[i].line);
  return entries;
}

// --- addresses

// Kernels by address: those of one dtype are neighbours in the table.
template <class Kernel>
struct FamilyKernels {
  std::span<const Kernel> of[kRowDtypes];  // by Dtype

  // The kernel at an index of the table. An empty Kernel if the build has none.
  Kernel at(int32_t index) const {
    auto left = static_cast<size_t>(index);
    for (const std::span<const Kernel>& part : of) {
      if (left < part.size()) return part[left];
      left -= part.size();
    }
    return {};
  }
};

// The kernels of one dtype. Maker::of<word>() is the kernel of a word.
template <class Family, class Maker, bool kHeld, Dtype kDtype>
constexpr auto make_kernels() {
  constexpr auto first_of = [](int dtype) {
    size_t first = 0;
    for (const auto& numbered : kNumberedWords<Family, kHeld>)
      first += static_cast<int>(Family::variant_of(numbered.word).dtype) < dtype ? 1 : 0;
    return first;
  };
  constexpr size_t kFirst = first_of(static_cast<int>(kDtype));
  constexpr size_t kCount = first_of(static_cast<int>(kDtype) + 1) - kFirst;
  return []<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array{Maker::template of<kNumberedWords<Family, kHeld>[kFirst + kIndex].word>()...};
  }
  (std::make_index_sequence<kCount>());
}

}  // namespace fastnorm::cuda
