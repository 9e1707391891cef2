// The kernels of calls with stages of each architecture, expanded from variants.inc into constexpr
// tables: planning searches them, tests iterate them, and instances.cu turns them into kernels.
// CUDA-free.
#pragma once

#include <algorithm>
#include <array>

#include "core/norm_stages.h"
#include "cuda/name_writer.h"

namespace fastnorm::cuda {

namespace stages_words {

constexpr uint8_t dtype_bit(Dtype dtype) { return 1 << static_cast<int>(dtype); }
inline constexpr uint8_t F32 = dtype_bit(Dtype::kF32), F16 = dtype_bit(Dtype::kF16),
                         BF16 = dtype_bit(Dtype::kBF16), HALF = F16 | BF16, ALL = F32 | HALF;
enum Archs : uint8_t { EVERY, SM90 };

struct Line {
  StagesVariant variant;  // without dtype
  uint8_t dtypes;
  Archs archs;
};

#define V(form, dtypes, threads, vectors, per_sm, archs) \
  {{Dtype::kF32, StagesForm::form, threads, vectors, per_sm}, dtypes, archs},
inline constexpr Line kLines[] = {
#include "cuda/norm_stages/variants.inc"
};
#undef V

#define V(...) "V(" #__VA_ARGS__ ")",
inline constexpr const char* kTexts[] = {
#include "cuda/norm_stages/variants.inc"
};
#undef V

// Calls use(variant, line) for the kernels of an architecture; `held`: those that hold rows, too.
template <typename Use>
constexpr void for_each(bool held, Use use) {
  uint16_t number = 0;
  for (const Line& line : kLines) {
    const uint16_t mine = number++;
    if (line.archs == SM90 && !held) continue;
    for (int dtype = 0; dtype < kRowDtypes; ++dtype) {
      if ((line.dtypes >> dtype & 1) == 0) continue;
      StagesVariant variant = line.variant;
      variant.dtype = static_cast<Dtype>(dtype);
      use(variant, mine);
    }
  }
}

}  // namespace stages_words

constexpr int count_stages(bool held) {
  int count = 0;
  stages_words::for_each(held, [&](const StagesVariant&, uint16_t) { ++count; });
  return count;
}

constexpr const char* name_of(StagesForm form) {
  return form == StagesForm::kGated       ? "gated"
         : form == StagesForm::kSandwich  ? "sandwich"
         : form == StagesForm::kModulated ? "modulated"
                                          : "stages";
}

// Lines of entries of this family begin here, behind those of the norm's own list.
inline constexpr uint16_t kFirstStagesLine = 0x4000;

constexpr StagesEntry make_stages_entry(const StagesVariant& v, uint16_t line) {
  StagesEntry entry{v, {}};
  NormEntry& norm = entry.norm;
  norm.key = {v.dtype, Source::kAdd, Stat::kRms, Affine::kAny, Sink::kQuant, Access::kAny};
  norm.tile = {v.threads, v.vectors, 1};
  norm.order = fastnorm::packed(norm.key, norm.tile);
  norm.line = static_cast<uint16_t>(kFirstStagesLine + line);
  NameWriter name(norm.name);
  name << dtype_name(v.dtype) << ' ' << name_of(v.form) << ' ' << +v.threads << 'x';
  if (!v.is_held()) {
    name << "stream";
  } else {
    name << +v.vectors;
  }
  return entry;
}

template <bool kHeld>
constexpr auto make_stages_entries() {
  std::array<StagesEntry, count_stages(kHeld)> entries = {};
  size_t count = 0;
  stages_words::for_each(kHeld, [&](const StagesVariant& v, uint16_t line) {
    entries[count++] = make_stages_entry(v, line);
  });
  std::sort(entries.begin(), entries.end(), [](const StagesEntry& a, const StagesEntry& b) {
    return packed(a.variant) < packed(b.variant);
  });
  return entries;
}

template <bool kHeld>
inline constexpr auto kStagesEntries = make_stages_entries<kHeld>();

}  // namespace fastnorm::cuda
