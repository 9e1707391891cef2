// Turns the lines of a family's lists into kernels. A line describes several kernels. A kernel's
// word packs its numbers. A table has the kernels of an architecture, sorted by word, and consists
// of parts that are compiled separately. Needs no CUDA.
//
// A family is a struct with these members, most of which FamilyOf<> has:
//
//   kName                    as fastnorm_kernel_describe() has it
//   Variant, Word, Entry     one kernel as data; packed; with its name
//   kLines                   the lines: structs with dtypes, and per_sm for each architecture
//   kParts, part_of(variant) the table's parts, in its order; as many of each dtype
//   kForms                   kernels of an entry, for several forms of a launch
//   kOwnSharedBytes          shared memory of a block that no launch asks for, at the most
//   word_of(variant), variant_of(word), order_of(word)
//                            the order is the table's; a kernel is in it once
//   make_entry(word, line)
//   expand(line, dtype, arch, use)   calls use(variant) for what a line combines besides dtypes
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "core/common/dtype.h"
#include "core/common/word.h"
#include "cuda/arch.h"

namespace fastnorm::cuda {

// The words that a list may use.
namespace family_words {

constexpr uint8_t dtype_bit(Dtype dtype) { return 1 << static_cast<int>(dtype); }
inline constexpr uint8_t F32 = dtype_bit(Dtype::kF32), F16 = dtype_bit(Dtype::kF16),
                         BF16 = dtype_bit(Dtype::kBF16), HALF = F16 | BF16, ALL = F32 | HALF;

}  // namespace family_words

// Thread blocks of a multiprocessor on each architecture, for __launch_bounds__; 0: it has no such
// kernel.
struct PerArch {
  uint8_t of[kArchCount] = {};
};

template <class Variant>
struct FamilyLine {
  Variant variant;  // without what the line combines
  uint8_t dtypes;
  PerArch per_sm;
};

// What most families have: a part for each dtype, a word of one number, and lines that combine
// dtypes alone. The low `kBits` bits of a word do not tell kernels apart.
template <class ItsVariant, class ItsWord, int kBits>
struct FamilyOf {
  using Variant = ItsVariant;
  using Word = ItsWord;
  static constexpr int kParts = kRowDtypes, kForms = 1;
  static constexpr uint32_t kOwnSharedBytes = 40 << 10;
  static constexpr int part_of(const Variant& variant) { return static_cast<int>(variant.dtype); }
  static constexpr Word word_of(const Variant& variant) { return packed(variant); }
  static constexpr Variant variant_of(Word word) { return variant_in<Variant>(word); }
  static constexpr Word order_of(Word word) { return word >> kBits; }
  static constexpr void expand(const auto& line, Dtype dtype, int arch, auto use) {
    Variant variant = line.variant;
    variant.dtype = dtype;
    variant.per_sm = static_cast<int8_t>(line.per_sm.of[arch]);
    use(variant);
  }
};

// Calls use(numbers..) for each choice of one bit of every set: with the numbers of the bits.
constexpr void for_each_choice(auto use, uint32_t bits, auto... sets) {
  for (; bits != 0; bits &= bits - 1) {
    const int number = std::countr_zero(bits);
    if constexpr (sizeof...(sets) == 0) {
      use(number);
    } else {
      for_each_choice([&](auto... others) { use(number, others...); }, sets...);
    }
  }
}

// Calls use(variant, line) for each kernel of a part of an architecture's table.
template <class Family, typename Use>
constexpr void for_each_kernel(int arch, int part, Use use) {
  const int dtype = part / (Family::kParts / kRowDtypes);
  uint16_t number = 0;
  for (const auto& line : Family::kLines) {
    const uint16_t mine = number++;
    if (line.per_sm.of[arch] == 0 || (line.dtypes >> dtype & 1) == 0) continue;
    Family::expand(line, static_cast<Dtype>(dtype), arch, [&](const auto& variant) {
      if (Family::part_of(variant) == part) use(variant, mine);
    });
  }
}

// A kernel, and the number of its line.
template <class Family>
struct NumberedWord {
  typename Family::Word word = {};
  uint16_t line = 0;
};

template <class Family>
constexpr size_t count_kernels(int arch, int part) {
  size_t count = 0;
  for_each_kernel<Family>(arch, part, [&](const auto&, uint16_t) { ++count; });
  return count;
}

// The kernels of a part, in the table's order. An object with kernels expands only its own part,
// and no names: its compiler passes over it several times.
template <class Family, int kArch, int kPart>
constexpr auto make_words() {
  std::array<NumberedWord<Family>, count_kernels<Family>(kArch, kPart)> words = {};
  size_t count = 0;
  for_each_kernel<Family>(kArch, kPart, [&](const auto& variant, uint16_t line) {
    words[count++] = {Family::word_of(variant), line};
  });
  std::sort(words.begin(), words.end(), [](const auto& a, const auto& b) {
    return Family::order_of(a.word) < Family::order_of(b.word);
  });
  return words;
}

template <class Family, int kArch, int kPart>
inline constexpr auto kWords = make_words<Family, kArch, kPart>();

// --- tables

// Whether a line gives two architectures the same entries. Plans read the thread blocks of a
// multiprocessor in an entry's variant. Entries of the norm do not have them.
constexpr bool has_same_entries(const auto& line, int first, int second) {
  const int a = line.per_sm.of[first], b = line.per_sm.of[second];
  if constexpr (requires { line.variant.per_sm; }) return a == b;
  return (a == 0) == (b == 0);
}

// The first architecture with the same entries, which has the table of both.
template <class Family>
constexpr int table_arch(int arch) {
  for (int first = 0; first < arch; ++first) {
    const bool same =
        std::all_of(std::begin(Family::kLines), std::end(Family::kLines),
                    [&](const auto& line) { return has_same_entries(line, first, arch); });
    if (same) return first;
  }
  return arch;
}

// True if each kernel is in its part once.
template <class Family, int kArch, int kPart>
constexpr bool each_once() {
  const auto& words = kWords<Family, kArch, kPart>;
  for (size_t i = 1; i < words.size(); ++i) {
    if (Family::order_of(words[i - 1].word) >= Family::order_of(words[i].word)) return false;
  }
  return true;
}

// An architecture's kernels with their names. Each kernel is there once.
template <class Family, int kArch>
constexpr auto make_table() {
  constexpr size_t kCount = []<int... kPart>(std::integer_sequence<int, kPart...>) {
    static_assert((each_once<Family, kArch, kPart>() && ...), "two lines make the same kernel");
    return (kWords<Family, kArch, kPart>.size() + ...);
  }
  (std::make_integer_sequence<int, Family::kParts>());
  std::array<typename Family::Entry, kCount> table = {};
  size_t count = 0;
  const auto append = [&](const auto& words) {
    for (const auto& numbered : words)
      table[count++] = Family::make_entry(numbered.word, numbered.line);
  };
  [&]<int... kPart>(std::integer_sequence<int, kPart...>) {
    (append(kWords<Family, kArch, kPart>), ...);
  }
  (std::make_integer_sequence<int, Family::kParts>());
  return table;
}

// --- addresses

// The addresses of a part's kernels, for kernels.h. Maker::kernel<number>() is the kernel of a
// number within the part. The part is a template argument because nvcc may give Makers of several
// objects one name.
template <class Family, int kArch, int kPart, class Maker, size_t kCount>
std::span<const void* const> addresses_of() {
  return []<size_t... kNumber>(std::index_sequence<kNumber...>) {
    static const void* const all[] = {
        reinterpret_cast<const void*>(Maker::template kernel<kNumber>())...};
    return std::span<const void* const>(all);
  }
  (std::make_index_sequence<kCount>());
}

}  // namespace fastnorm::cuda
