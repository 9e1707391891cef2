// The kernels of norm_heads_backward for each architecture, expanded from variants.inc to constexpr
// tables. Planning searches them, tests iterate them, and instances.cu turns them into kernels.
// Needs no CUDA.
#pragma once

#include <algorithm>
#include <array>

#include "core/norm_heads_backward_plan.h"
#include "cuda/name_writer.h"

namespace fastnorm::cuda {

namespace heads_backward_words {

constexpr uint8_t dtype_bit(Dtype dtype) { return 1 << static_cast<int>(dtype); }
inline constexpr uint8_t F32 = dtype_bit(Dtype::kF32), F16 = dtype_bit(Dtype::kF16),
                         BF16 = dtype_bit(Dtype::kBF16), HALF = F16 | BF16, ALL = F32 | HALF;
inline constexpr uint8_t RMS = 1, ANY = 2, BOTH = RMS | ANY, ONE = RMS;
enum Archs : uint8_t { EVERY, SM90 };

struct Line {
  NormHeadsBackwardVariant variant;  // without dtype and kind
  uint8_t dtypes, kinds;
  Archs archs;
};

#define V(form, dtypes, kinds, threads, vectors, rows, per_sm, archs)             \
  {{Dtype::kF32, HeadsBackwardForm::form, false, threads, vectors, rows, per_sm}, \
   dtypes,                                                                        \
   kinds,                                                                         \
   archs},
inline constexpr Line kLines[] = {
#include "cuda/norm_heads_backward/variants.inc"
};
#undef V

// Calls use(variant) for the kernels of an architecture; `held`: those that hold rows, too.
template <typename Use>
constexpr void for_each(bool held, Use use) {
  for (const Line& line : kLines) {
    if (line.archs == SM90 && !held) continue;
    for (int dtype = 0; dtype < kRowDtypes; ++dtype) {
      for (int any = 0; any < 2; ++any) {
        if ((line.dtypes >> dtype & 1) == 0 || (line.kinds >> any & 1) == 0) continue;
        NormHeadsBackwardVariant variant = line.variant;
        variant.dtype = static_cast<Dtype>(dtype);
        variant.any = any != 0;
        use(variant);
      }
    }
  }
}

}  // namespace heads_backward_words

constexpr int count_heads_backward(bool held) {
  int count = 0;
  heads_backward_words::for_each(held, [&](const NormHeadsBackwardVariant&) { ++count; });
  return count;
}

constexpr const char* name_of(HeadsBackwardForm form) {
  return form == HeadsBackwardForm::kFold      ? "fold"
         : form == HeadsBackwardForm::kGeneral ? "general"
         : form == HeadsBackwardForm::kTokens  ? "tokens"
                                               : "held";
}

constexpr NormHeadsBackwardEntry make_heads_backward_entry(const NormHeadsBackwardVariant& v) {
  NormHeadsBackwardEntry entry{v, packed(v)};
  NameWriter name(entry.name);
  name << "norm_heads_backward ";
  if (v.form != HeadsBackwardForm::kFold) name << dtype_name(v.dtype) << ' ';
  name << name_of(v.form);
  if (v.is_held())
    name << (v.any ? " any " : " rms ") << +v.threads << 'x' << +v.vectors << 'x' << +v.rows;
  if (v.has_tokens()) name << ' ' << +v.threads << 'x' << +v.vectors;
  return entry;
}

// Sorted by their words.
template <bool kHeld>
constexpr auto make_heads_backward_words() {
  std::array<uint32_t, count_heads_backward(kHeld)> words = {};
  size_t count = 0;
  heads_backward_words::for_each(
      kHeld, [&](const NormHeadsBackwardVariant& v) { words[count++] = packed(v); });
  std::sort(words.begin(), words.end());
  return words;
}

template <bool kHeld>
inline constexpr auto kHeadsBackwardWords = make_heads_backward_words<kHeld>();

}  // namespace fastnorm::cuda
