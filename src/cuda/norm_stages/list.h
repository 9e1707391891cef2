// The kernels of calls with stages of each architecture, expanded from variants.inc into constexpr
// tables: planning searches them, tests iterate them, and instances.cu turns them into kernels.
// CUDA-free.
#pragma once

#include "core/norm_stages.h"
#include "cuda/family.h"
#include "cuda/name_writer.h"

namespace fastnorm::cuda {

namespace stages_words {

using namespace family_words;

using Line = FamilyLine<StagesVariant>;

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

}  // namespace stages_words

constexpr const char* name_of(StagesForm form) {
  return form == StagesForm::kGated            ? "gated"
         : form == StagesForm::kSandwich       ? "sandwich"
         : form == StagesForm::kModulated      ? "modulated"
         : form == StagesForm::kRotated        ? "rotated"
         : form == StagesForm::kRotatedSum     ? "rotated-sum"
         : form == StagesForm::kRotatedLean    ? "rotated-lean"
         : form == StagesForm::kRotatedLeanSum ? "rotated-lean-sum"
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

struct StagesFamily : ExpandsDtypes {
  using Variant = StagesVariant;
  using Entry = StagesEntry;
  static constexpr auto& kLines = stages_words::kLines;
  static constexpr int kDetailBits = 6;  // thread blocks of a multiprocessor
  static constexpr Variant variant_of(uint32_t word) { return stages_variant_of(word); }
  static constexpr Entry make_entry(const Variant& v, uint16_t line) {
    return make_stages_entry(v, line);
  }
};

}  // namespace fastnorm::cuda
