// The kernels of norm_heads of each architecture, expanded from variants.inc into constexpr tables:
// planning searches them, tests iterate them, and instances.cu turns them into kernels. CUDA-free.
#pragma once

#include "core/norm_heads_plan.h"
#include "cuda/family.h"
#include "cuda/name_writer.h"

namespace fastnorm::cuda {

namespace heads_words {

using namespace family_words;

using Line = FamilyLine<NormHeadsVariant>;

#define V(form, dtypes, threads, vectors, per_sm, archs) \
  {{Dtype::kF32, HeadsForm::form, threads, vectors, per_sm}, dtypes, archs},
inline constexpr Line kLines[] = {
#include "cuda/norm_heads/variants.inc"
};
#undef V

}  // namespace heads_words

constexpr const char* name_of(HeadsForm form) {
  return form == HeadsForm::kGeneral  ? "general"
         : form == HeadsForm::kLatent ? "latent"
         : form == HeadsForm::kApart  ? "apart"
         : form == HeadsForm::kBeside ? "beside"
         : form == HeadsForm::kMore   ? "more"
         : form == HeadsForm::kTokens ? "tokens"
                                      : "any";
}

constexpr NormHeadsEntry make_heads_entry(const NormHeadsVariant& v) {
  NormHeadsEntry entry{v, packed(v)};
  NameWriter name(entry.name);
  name << "norm_heads " << dtype_name(v.dtype) << ' ' << name_of(v.form);
  if (v.is_held()) name << ' ' << +v.threads << 'x' << +v.vectors;
  return entry;
}

struct HeadsFamily : ExpandsDtypes {
  using Variant = NormHeadsVariant;
  using Entry = NormHeadsEntry;
  static constexpr auto& kLines = heads_words::kLines;
  static constexpr int kDetailBits = 6;  // thread blocks of a multiprocessor
  static constexpr Variant variant_of(uint32_t word) { return heads_variant_of(word); }
  static constexpr Entry make_entry(const Variant& v, uint16_t) { return make_heads_entry(v); }
};

}  // namespace fastnorm::cuda
