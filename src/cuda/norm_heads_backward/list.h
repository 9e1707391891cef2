// The kernels of norm_heads_backward for each architecture, expanded from variants.inc to constexpr
// tables. Planning searches them, tests iterate them, and instances.cu turns them into kernels.
// Needs no CUDA.
#pragma once

#include "core/norm_heads_backward/plan.h"
#include "cuda/family.h"
#include "cuda/name_writer.h"

namespace fastnorm::cuda {

namespace heads_backward_words {

using namespace family_words;
inline constexpr bool RMS = false, ANY = true, ONE = RMS;

using Line = FamilyLine<NormHeadsBackwardVariant>;

#define V(form, dtypes, any, threads, vectors, rows, sm80, sm90, sm100, sm120, ptx) \
  {{Dtype::kF32, HeadsBackwardForm::form, any, threads, vectors, rows},             \
   dtypes,                                                                          \
   {{sm80, sm90, sm100, sm120, ptx}}},
inline constexpr Line kLines[] = {
#include "cuda/norm_heads_backward/variants.inc"
};
#undef V

}  // namespace heads_backward_words

constexpr const char* name_of(HeadsBackwardForm form) {
  return form == HeadsBackwardForm::kFold      ? "fold"
         : form == HeadsBackwardForm::kGeneral ? "general"
         : form == HeadsBackwardForm::kTokens  ? "tokens"
         : form == HeadsBackwardForm::kWhole   ? "whole"
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
  if (v.has_tokens() || v.is_whole()) name << ' ' << +v.threads << 'x' << +v.vectors;
  return entry;
}

struct NormHeadsBackwardFamily : FamilyOf<NormHeadsBackwardVariant, uint32_t, 4> {
  static constexpr const char* kName = "norm_heads_backward";
  using Entry = NormHeadsBackwardEntry;
  static constexpr auto& kLines = heads_backward_words::kLines;
  static constexpr Entry make_entry(Word word, uint16_t) {
    return make_heads_backward_entry(variant_of(word));
  }
};

}  // namespace fastnorm::cuda
