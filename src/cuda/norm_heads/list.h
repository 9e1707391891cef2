// The kernels of norm_heads of each architecture, expanded from variants.inc into constexpr tables:
// planning searches them, tests iterate them, and instances.cu turns them into kernels. CUDA-free.
#pragma once

#include <algorithm>
#include <array>

#include "core/norm_heads_plan.h"
#include "cuda/name_writer.h"

namespace fastnorm::cuda {

namespace heads_words {

constexpr uint8_t dtype_bit(Dtype dtype) { return 1 << static_cast<int>(dtype); }
inline constexpr uint8_t F32 = dtype_bit(Dtype::kF32), F16 = dtype_bit(Dtype::kF16),
                         BF16 = dtype_bit(Dtype::kBF16), HALF = F16 | BF16, ALL = F32 | HALF;
enum Archs : uint8_t { EVERY, SM90 };

struct Line {
  NormHeadsVariant variant;  // without dtype
  uint8_t dtypes;
  Archs archs;
};

#define V(form, dtypes, threads, vectors, per_sm, archs) \
  {{Dtype::kF32, HeadsForm::form, threads, vectors, per_sm}, dtypes, archs},
inline constexpr Line kLines[] = {
#include "cuda/norm_heads/variants.inc"
};
#undef V

// Calls use(variant) for the kernels of an architecture; `held`: those that hold rows, too.
template <typename Use>
constexpr void for_each(bool held, Use use) {
  for (const Line& line : kLines) {
    if (line.archs == SM90 && !held) continue;
    for (int dtype = 0; dtype < kRowDtypes; ++dtype) {
      if ((line.dtypes >> dtype & 1) == 0) continue;
      NormHeadsVariant variant = line.variant;
      variant.dtype = static_cast<Dtype>(dtype);
      use(variant);
    }
  }
}

}  // namespace heads_words

constexpr int count_heads(bool held) {
  int count = 0;
  heads_words::for_each(held, [&](const NormHeadsVariant&) { ++count; });
  return count;
}

constexpr const char* name_of(HeadsForm form) {
  return form == HeadsForm::kGeneral  ? "general"
         : form == HeadsForm::kApart  ? "apart"
         : form == HeadsForm::kBeside ? "beside"
                                      : "any";
}

constexpr NormHeadsEntry make_heads_entry(const NormHeadsVariant& v) {
  NormHeadsEntry entry{v, packed(v)};
  NameWriter name(entry.name);
  name << "norm_heads " << dtype_name(v.dtype) << ' ' << name_of(v.form);
  if (v.is_held()) name << ' ' << +v.threads << 'x' << +v.vectors;
  return entry;
}

// Sorted by their words.
template <bool kHeld>
constexpr auto make_heads_words() {
  std::array<uint32_t, count_heads(kHeld)> words = {};
  size_t count = 0;
  heads_words::for_each(kHeld, [&](const NormHeadsVariant& v) { words[count++] = packed(v); });
  std::sort(words.begin(), words.end());
  return words;
}

template <bool kHeld>
inline constexpr auto kHeadsWords = make_heads_words<kHeld>();

}  // namespace fastnorm::cuda
