// The kernels of calls with stages of each architecture, expanded from variants.inc into constexpr
// tables: planning searches them, tests iterate them, and instances.cu turns them into kernels.
// CUDA-free.
#pragma once

#include "core/norm/stages.h"
#include "cuda/family.h"
#include "cuda/name_writer.h"

namespace fastnorm::cuda {

namespace stages_words {

using namespace family_words;

using Line = FamilyLine<StagesVariant>;

#define V(form, dtypes, threads, vectors, sm80, sm90, sm100, sm120, ptx) \
  {{Dtype::kF32, StagesForm::form, threads, vectors}, dtypes, {{sm80, sm90, sm100, sm120, ptx}}},
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

constexpr StagesEntry make_stages_entry(const StagesVariant& v, uint16_t line) {
  StagesEntry entry;
  entry.variant = v;
  entry.key = general_key(v.dtype);
  entry.tile = {v.threads, v.vectors, 1};
  entry.order = fastnorm::packed(entry.key, entry.tile);
  entry.line = line;
  NameWriter name(entry.name);
  name << dtype_name(v.dtype) << ' ' << name_of(v.form) << ' ' << +v.threads << 'x';
  if (!v.is_held()) {
    name << "stream";
  } else {
    name << +v.vectors;
  }
  return entry;
}

struct NormStagesFamily : FamilyOf<StagesVariant, uint32_t, 6> {
  static constexpr const char* kName = "norm";
  using Entry = StagesEntry;
  static constexpr auto& kLines = stages_words::kLines;
  static constexpr Entry make_entry(Word word, uint16_t line) {
    return make_stages_entry(variant_of(word), line);
  }
};

}  // namespace fastnorm::cuda
