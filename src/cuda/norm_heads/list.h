// The kernels of norm_heads of each architecture, expanded from variants.inc into constexpr tables:
// planning searches them, tests iterate them, and instances.cu turns them into kernels. CUDA-free.
#pragma once

#include "core/norm_heads/plan.h"
#include "cuda/family.h"
#include "cuda/name_writer.h"

namespace fastnorm::cuda {

namespace heads_words {

using namespace family_words;

using Line = FamilyLine<NormHeadsVariant>;

#define V(form, dtypes, threads, vectors, sm80, sm90, sm100, sm120, ptx) \
  {{Dtype::kF32, HeadsForm::form, threads, vectors}, dtypes, {{sm80, sm90, sm100, sm120, ptx}}},
inline constexpr Line kLines[] = {
#include "cuda/norm_heads/variants.inc"
};
#undef V

}  // namespace heads_words

// The form's word in names of kernels and in docs/kernels.md.
constexpr const char* name_of(HeadsForm form) {
  return form == HeadsForm::kGeneral       ? "general"
         : form == HeadsForm::kLatent      ? "latent"
         : form == HeadsForm::kRotateHalf  ? "rotate-half"
         : form == HeadsForm::kInterleaved ? "interleaved"
         : form == HeadsForm::kMore        ? "more"
         : form == HeadsForm::kTokens      ? "tokens"
         : form == HeadsForm::kIndexer     ? "indexer"
         : form == HeadsForm::kIndexerLean ? "indexer-lean"
                                           : "any";
}

constexpr NormHeadsEntry make_heads_entry(const NormHeadsVariant& v) {
  NormHeadsEntry entry{v, packed(v)};
  NameWriter name(entry.name);
  name << "norm_heads " << dtype_name(v.dtype) << ' ' << name_of(v.form);
  if (v.is_held()) name << ' ' << +v.threads << 'x' << +v.vectors;
  return entry;
}

// 6 bits are per_sm: see packed().
struct NormHeadsFamily : FamilyOf<NormHeadsVariant, uint32_t, 6> {
  static constexpr const char* kName = "norm_heads";
  using Entry = NormHeadsEntry;
  static constexpr auto& kLines = heads_words::kLines;
  static constexpr Entry make_entry(Word word, uint16_t) {
    return make_heads_entry(variant_of(word));
  }
  // The threads of a line are several powers of two, or-ed.
  static constexpr void expand(const heads_words::Line& line, Dtype dtype, int arch, auto use) {
    const auto each = [&](int threads) {
      heads_words::Line one = line;
      one.variant.threads = static_cast<int16_t>(1 << threads);
      FamilyOf::expand(one, dtype, arch, use);
    };
    for_each_choice(each, static_cast<uint32_t>(line.variant.threads));
  }
};

}  // namespace fastnorm::cuda
